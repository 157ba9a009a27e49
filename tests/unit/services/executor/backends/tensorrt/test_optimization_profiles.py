"""Which optimization profile serves a batch."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from nereid.backends import ModelDescription, TensorDescription
from nereid.core.errors import InvalidArgument
from nereid.pb import model_config_pb2
from nereid.services.executor.backends.tensorrt.optimization_profiles import (
    Profile,
    Range,
    choose,
    completed,
    largest_batch,
    misfit,
    profiles_wanted,
)

SMALL: Profile = {"x": Range((1, 4), (1, 4), (2, 4)), "y": Range((1,), (1,), (2,))}
LARGE: Profile = {"x": Range((1, 4), (8, 4), (16, 4)), "y": Range((1,), (8,), (16,))}
PROFILES = {0: SMALL, 3: LARGE}


def config(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(
        f'name: "m" backend: "tensorrt" {text}', model_config_pb2.ModelConfig()
    )


@pytest.mark.parametrize(
    ("x", "y", "chosen"),
    [
        ((1, 4), (1,), 0),
        ((2, 4), (2,), 0),
        ((3, 4), (3,), 3),
        ((16, 4), (16,), 3),
        ((17, 4), (17,), None),
        ((0, 4), (0,), None),
        ((1, 5), (1,), None),
        ((1, 4, 1), (1,), None),
        # One input fits the small one, the other does not.
        ((1, 4), (16,), 3),
    ],
)
def test_the_profile_that_is_tuned_nearest_is_chosen(
    x: tuple[int, ...], y: tuple[int, ...], chosen: int | None
) -> None:
    assert choose(PROFILES, {"x": x, "y": y}) == chosen


def test_of_equals_the_first_is_chosen() -> None:
    assert choose({2: SMALL, 1: SMALL}, {"x": (1, 4)}) == 1


def test_the_largest_batch_is_what_some_profile_takes_for_all_inputs() -> None:
    assert largest_batch({0: SMALL}) == 2
    assert largest_batch(PROFILES) == 16
    assert largest_batch({0: {"x": Range((1, 4), (1, 4), (8, 4)), "y": SMALL["y"]}}) == 2
    assert largest_batch({0: {"x": Range((), (), ())}}) == 0


@pytest.mark.parametrize(
    ("groups", "instance", "wanted"),
    [
        ("", "m_0", (0,)),
        ("instance_group { }", "m_0_1", (0,)),
        ('instance_group { profile: ["2", "1", "2"] }', "m_0_1", (2, 1)),
        ('instance_group { } instance_group { profile: "1" }', "m_1_0", (1,)),
        ('instance_group { } instance_group { profile: "1" }', "m_0_0", (0,)),
        ('instance_group { name: "a" } instance_group { name: "b" profile: "2" }', "b_0", (2,)),
    ],
)
def test_an_instance_has_its_groups_profiles(
    groups: str, instance: str, wanted: tuple[int, ...]
) -> None:
    assert profiles_wanted(config(groups), instance, 3) == wanted


def test_a_profile_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="group m_0 asks for profile 3, the engine has 3"):
        profiles_wanted(config('instance_group { profile: "3" }'), "m_0_0", 3)


def test_what_no_profile_takes_is_told_with_what_they_take() -> None:
    assert misfit("m", {0: SMALL}, {"y": (9,), "x": (9, 4)}).message == (
        "no optimization profile of model 'm' takes the shapes 'x' [9,4], 'y' [9] "
        "(it has profile 0: 'x' [1,4] to [2,4], 'y' [1] to [2])"
    )


def test_the_engines_largest_batch_completes_a_configuration() -> None:
    x = TensorDescription("x", "FP16", (-1, 4))
    description = ModelDescription((x,), (x._replace(name="y"),))
    got = completed(config(""), description, 16)
    assert (got.max_batch_size, got.HasField("dynamic_batching")) == (16, True)
    assert [(each.name, list(each.dims)) for each in got.input] == [("x", [4])]
    assert [(each.name, list(each.dims)) for each in got.output] == [("y", [4])]
    assert completed(config(""), description, 1).HasField("dynamic_batching") is False
    with pytest.raises(InvalidArgument, match="configuration expects datatype TYPE_FP32"):
        completed(config('input { name: "x" data_type: TYPE_FP32 dims: 4 }'), description, 16)
