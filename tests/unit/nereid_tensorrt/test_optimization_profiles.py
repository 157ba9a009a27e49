"""Choosing the optimization profile for a batch."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from nereid.backends import ModelDescription, TensorDescription
from nereid.core.errors import InvalidArgument
from nereid.pb import model_config_pb2
from nereid_tensorrt.optimization_profiles import (
    Profile,
    ShapeRange,
    choose_profile,
    complete_from_engine,
    instance_profiles,
    largest_batch,
    no_profile_error,
)

SMALL: Profile = {"x": ShapeRange((1, 4), (1, 4), (2, 4)), "y": ShapeRange((1,), (1,), (2,))}
LARGE: Profile = {"x": ShapeRange((1, 4), (8, 4), (16, 4)), "y": ShapeRange((1,), (8,), (16,))}
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
def test_the_profile_that_is_optimised_nearest_is_chosen(
    x: tuple[int, ...], y: tuple[int, ...], chosen: int | None
) -> None:
    assert choose_profile(PROFILES, {"x": x, "y": y}) == chosen


def test_of_equals_the_first_is_chosen() -> None:
    assert choose_profile({2: SMALL, 1: SMALL}, {"x": (1, 4)}) == 1


def test_the_largest_batch_is_what_some_profile_allows_for_all_inputs() -> None:
    assert largest_batch({0: SMALL}) == 2
    assert largest_batch(PROFILES) == 16
    assert largest_batch({0: {"x": ShapeRange((1, 4), (1, 4), (8, 4)), "y": SMALL["y"]}}) == 2
    assert largest_batch({0: {"x": ShapeRange((), (), ())}}) == 0


@pytest.mark.parametrize(
    ("groups", "instance", "numbers"),
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
    groups: str, instance: str, numbers: tuple[int, ...]
) -> None:
    assert instance_profiles(config(groups), instance, 3) == numbers


def test_a_profile_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="group m_0 asks for profile 3, the engine has 3"):
        instance_profiles(config('instance_group { profile: "3" }'), "m_0_0", 3)


def test_shapes_that_no_profile_allows_are_an_error_with_the_profiles() -> None:
    assert no_profile_error("m", {0: SMALL}, {"y": (9,), "x": (9, 4)}).message == (
        "no optimization profile of model 'm' takes the shapes 'x' [9,4], 'y' [9] "
        "(it has profile 0: 'x' [1,4] to [2,4], 'y' [1] to [2])"
    )


def test_the_engines_largest_batch_completes_a_configuration() -> None:
    x = TensorDescription("x", "FP16", (-1, 4))
    description = ModelDescription((x,), (x._replace(name="y"),))
    done = complete_from_engine(config(""), description, 16)
    assert (done.max_batch_size, done.HasField("dynamic_batching")) == (16, True)
    assert [(each.name, list(each.dims)) for each in done.input] == [("x", [4])]
    assert [(each.name, list(each.dims)) for each in done.output] == [("y", [4])]
    assert complete_from_engine(config(""), description, 1).HasField("dynamic_batching") is False
    with pytest.raises(InvalidArgument, match="configuration expects datatype TYPE_FP32"):
        complete_from_engine(
            config('input { name: "x" data_type: TYPE_FP32 dims: 4 }'), description, 16
        )
