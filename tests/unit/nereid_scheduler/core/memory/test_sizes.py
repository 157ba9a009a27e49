"""What models take: sizes as they are measured and guessed."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import parse_config
from nereid.pb.model_config_pb2 import ModelConfig
from nereid_scheduler.core.memory.sizes import ModelSizes, device_name, read_sizes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("cpu=10,gpu 0=5", {"cpu": 10, "gpu 0": 5}),
        ("", {}),
        (None, {}),
        (b"cpu=1", {}),
        ("cpu=-1,=5,gpu 0=x,cpu", {}),
    ],
)
def test_what_executors_report(text: object, sizes: dict[str, int]) -> None:
    assert read_sizes(text) == sizes


def config(text: str = "") -> ModelConfig:
    return parse_config(f'name: "m" backend: "onnxruntime" {text}', model_name="m")


def test_unknown_models_are_guessed_by_their_files() -> None:
    sizes = ModelSizes()
    one = config("instance_group { count: 1 kind: KIND_CPU }")
    assert sizes.needs("m", one, (), 0) == {"cpu": 16 * MIB}
    assert sizes.needs("m", one, (), 100 * MIB) == {"cpu": 150 * MIB}
    # ONNX Runtime has two instances on the CPU by default, and one on each GPU.
    assert sizes.needs("m", config(), (), 0) == {"cpu": 32 * MIB}
    assert sizes.needs("m", config(), (0, 2), 0) == {
        "cpu": 0,
        "gpu 0": 16 * MIB,
        "gpu 2": 16 * MIB,
    }
    with pytest.raises(InvalidArgument, match="no GPUs are available"):
        sizes.needs("m", config("instance_group { kind: KIND_GPU }"), (), 0)


def test_measured_sizes_are_those_of_an_instance() -> None:
    sizes = ModelSizes()
    assert not sizes.knows("m")
    # The first instance on a GPU is charged with what they share.
    assert sizes.measured("m", {"gpu 0": [30, 10], "gpu 1": [21], "cpu": [5]})
    assert not sizes.measured("m", {"gpu 0": [30, 10], "gpu 1": [21], "cpu": [5]})
    assert not sizes.measured("m", {"cpu": []})
    assert sizes.saved() == {"m": {"gpu": 21, "cpu": 5}}
    group = "instance_group { count: 2 kind: KIND_GPU gpus: [ 1 ] }"
    assert sizes.needs("m", config(group), (0, 1), 999) == {"gpu 1": 42, "cpu": 10}


def test_saved_sizes_come_back_but_for_what_is_malformed() -> None:
    saved = {"m": {"cpu": 5, "gpu": -1, "x": "y", "z": True}, "n": 7}
    sizes = ModelSizes(saved)
    assert sizes.saved() == {"m": {"cpu": 5}}
    assert sizes.knows("m")
    assert not sizes.knows("n")


def test_names_of_devices() -> None:
    assert [device_name(gpu) for gpu in (None, 0, 3)] == ["cpu", "gpu 0", "gpu 3"]
