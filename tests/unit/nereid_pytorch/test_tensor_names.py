"""Which argument and result of a module a configured tensor is."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid_pytorch.tensor_names import arguments_of, results_of


@pytest.mark.parametrize(
    ("names", "arguments", "chosen"),
    [
        (["b", "a"], ["a", "b"], ["b", "a"]),
        (["b"], ["a", "b"], ["b"]),
        # All by name, or none: "a" is no argument's name here but comes first.
        (["b", "x"], ["a", "b"], ["a", "b"]),
        (["INPUT__1", "INPUT__0"], ["a", "b"], ["b", "a"]),
        (["x__1", "y__0"], ["a", "b"], ["b", "a"]),
        (["INPUT__1"], ["a", "b"], ["b"]),
        (["INPUT__1", "x"], ["a", "b"], ["a", "b"]),
        (["INPUT_1", "INPUT_0"], ["a", "b"], ["a", "b"]),
        (["x__1", "x__0"], ["x__0", "x__1"], ["x__1", "x__0"]),
    ],
)
def test_inputs_are_arguments_by_name_by_number_or_in_order(
    names: list[str], arguments: list[str], chosen: list[str]
) -> None:
    assert arguments_of("m", names, arguments) == dict(zip(names, chosen, strict=True))


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["y", "x"], [0, 1]),
        (["OUTPUT__1", "OUTPUT__0"], [1, 0]),
        (["OUTPUT__3"], [3]),
        (["OUTPUT__1", "x"], [0, 1]),
    ],
)
def test_outputs_are_results_by_number_or_in_order(names: list[str], chosen: list[int]) -> None:
    assert results_of("m", names) == dict(zip(names, chosen, strict=True))


def test_an_input_too_many_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="input 'y' is number 1 of a model that takes 1"):
        arguments_of("m", ["x", "y"], ["a"])
    with pytest.raises(InvalidArgument, match="input 'IN__2' is number 2 of a model that takes 2"):
        arguments_of("m", ["IN__2"], ["a", "b"])


def test_two_names_for_one_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="the inputs a__0, b__0 do not stand for different"):
        arguments_of("m", ["a__0", "b__0"], ["x", "y"])
    with pytest.raises(InvalidArgument, match="the outputs a__0, b__0 do not stand for different"):
        results_of("m", ["a__0", "b__0"])
