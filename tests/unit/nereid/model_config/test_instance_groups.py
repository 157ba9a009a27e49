"""instance_group as an executor hosts it."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import (
    InstanceGroup,
    device_of_groups,
    normalise_instance_groups,
    parse_config,
    with_instance_groups,
)


def groups(
    text: str, gpu_ids: tuple[int, ...] = (), backend: str = "onnxruntime"
) -> list[InstanceGroup]:
    config = parse_config(f'name: "m" backend: "{backend}" {text}', model_name="m")
    return normalise_instance_groups(config, gpu_ids=gpu_ids)


@pytest.mark.parametrize(
    ("backend", "gpu_ids", "expected"),
    [
        ("onnxruntime", (), InstanceGroup("m", "CPU", 2)),
        ("onnxruntime", (3, 1), InstanceGroup("m", "GPU", 1, (1, 3))),
        ("tensorflow", (), InstanceGroup("m", "CPU", 2)),
        ("pytorch", (), InstanceGroup("m", "CPU", 1)),
        ("python", (0,), InstanceGroup("m", "CPU", 1)),
        ("openvino", (0,), InstanceGroup("m", "CPU", 1)),
    ],
)
def test_without_a_group_the_backend_and_the_gpus_decide(
    backend: str, gpu_ids: tuple[int, ...], expected: InstanceGroup
) -> None:
    assert groups("", gpu_ids, backend) == [expected]


@pytest.mark.parametrize(
    ("text", "gpu_ids", "expected"),
    [
        ("{ count: 3 }", (), InstanceGroup("m_0", "CPU", 3)),
        ("{ count: 3 }", (0,), InstanceGroup("m_0", "GPU", 3, (0,))),
        ("{ count: -1 }", (), InstanceGroup("m_0", "CPU", 2)),
        ('{ name: "g" kind: KIND_CPU }', (0,), InstanceGroup("g", "CPU", 2)),
        ("{ kind: KIND_GPU gpus: [ 1 ] }", (0, 1), InstanceGroup("m_0", "GPU", 1, (1,))),
        ("{ gpus: [ 1 ] }", (0, 1), InstanceGroup("m_0", "GPU", 1, (1,))),
        ("{ kind: KIND_MODEL }", (0,), InstanceGroup("m_0", "MODEL", 1)),
    ],
)
def test_what_a_group_leaves_out_is_filled_in(
    text: str, gpu_ids: tuple[int, ...], expected: InstanceGroup
) -> None:
    assert groups(f"instance_group {text}", gpu_ids) == [expected]


def test_names_count_all_groups() -> None:
    found = groups('instance_group [ { }, { name: "g" }, { } ]')
    assert [group.name for group in found] == ["m_0", "g", "m_2"]


def test_a_passive_group_is_marked() -> None:
    found = groups("instance_group { kind: KIND_GPU passive: true }", (0,))
    assert found == [InstanceGroup("m_0", "GPU", 1, (0,), passive=True)]


@pytest.mark.parametrize(
    ("text", "gpu_ids", "expected"),
    [
        (
            "{ kind: KIND_GPU }",
            (),
            "instance group m_0 of model m has kind KIND_GPU but no GPUs are available",
        ),
        (
            "{ kind: KIND_GPU gpus: [ 7 ] }",
            (1, 0),
            (
                "instance group m_0 of model m specifies invalid or unsupported gpu id 7. GPUs "
                "with at least the minimum required CUDA compute compatibility of 6.000000 are: 0, "
                "1"
            ),
        ),
        (
            "{ gpus: [ 7 ] }",
            (0,),
            "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
        ),
        ("{ kind: 9 }", (), "instance_group kind 9 not supported"),
    ],
)
def test_what_an_executor_cannot_host_is_refused(
    text: str, gpu_ids: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        groups(f"instance_group {text}", gpu_ids)
    assert caught.value.message == expected


def test_an_ensemble_has_no_instances() -> None:
    assert groups("ensemble_scheduling { }") == []


def test_a_placed_configuration_shows_the_groups_and_leaves_the_original_alone() -> None:
    config = parse_config('name: "m" backend: "onnxruntime"', model_name="m")
    placed = with_instance_groups(config, gpu_ids=())
    assert [(group.name, group.count) for group in placed.instance_group] == [("m", 2)]
    assert not config.instance_group
    again = with_instance_groups(placed, gpu_ids=())
    assert again == placed


@pytest.mark.parametrize(
    ("text", "backend", "device"),
    [
        ("", "onnxruntime", "any"),
        ("", "python", "cpu"),
        ("instance_group { }", "python", "any"),
        ("instance_group { kind: KIND_CPU }", "onnxruntime", "cpu"),
        ("instance_group { kind: KIND_MODEL }", "python", "cpu"),
        ("instance_group { kind: KIND_GPU }", "onnxruntime", "gpu"),
        ("instance_group { gpus: [ 1 ] }", "onnxruntime", "gpu"),
        ("instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]", "onnxruntime", "gpu"),
        ("instance_group [ { kind: KIND_CPU }, { kind: KIND_AUTO } ]", "onnxruntime", "any"),
    ],
)
def test_which_executors_can_host_a_model(text: str, backend: str, device: str) -> None:
    config = parse_config(f'name: "m" backend: "{backend}" {text}', model_name="m")
    assert device_of_groups(config) == device
