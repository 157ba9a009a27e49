"""Rows of tensors between steps: read, divided and joined."""

from typing import Any

import numpy as np
import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.tensors import datatype_of, from_raw, to_raw
from nereid.model_config import parse_config
from nereid_scheduler.versions.ensembles.graphs.graph import Plan
from nereid_scheduler.versions.ensembles.step_tensors import Tensor
from nereid_scheduler.versions.ensembles.tensor_rows import TensorRows

Array = np.ndarray[Any, Any]
TEXTS = np.array([[b"a", b""], [b"bc", b"d"], [b"", b"efg"]], np.object_)
ARRAYS: list[Array] = [
    np.arange(6, dtype=np.float32).reshape(3, 2),
    np.arange(3, dtype=np.int64).reshape(3, 1),
    np.zeros((3, 0), np.int8),
    TEXTS,
]


def rows(more: str = "") -> TensorRows:
    config = parse_config(more, model_name="e")
    return TensorRows(config, Plan((), ()), {}, _no_model, 3)


def _no_model(_: object) -> Any:
    raise AssertionError("no default is made")


def tensor(array: Array, *, batched: bool = True) -> Tensor:
    return Tensor(datatype_of(array.dtype), array.shape, to_raw(array), batched=batched)


def array_of(made: Tensor | None) -> Array:
    assert made is not None
    assert isinstance(made.payload, bytes)
    return from_raw(made.payload, made.datatype, made.shape)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_rows_that_were_divided_are_joined_in_their_order(array: Array) -> None:
    whole = tensor(array)
    one, other = rows().select(whole, [2, 0]), rows().select(whole, [1])
    np.testing.assert_array_equal(array_of(one), array[[2, 0]])
    np.testing.assert_array_equal(array_of(other), array[[1]])
    joined = rows().join("y", [((2, 0), one), ((1,), other)])
    np.testing.assert_array_equal(array_of(joined), array)
    assert joined == whole


def test_classes_are_divided_and_joined_with_their_tensor() -> None:
    whole = tensor(ARRAYS[0])._replace(classes=tensor(TEXTS))
    parts = [((row,), rows().select(whole, [row])) for row in (2, 1, 0)]
    assert rows().join("y", parts) == whole


def test_an_output_that_no_part_has_is_left_out() -> None:
    assert rows().join("y", [((0,), None), ((1,), None)]) is None


@pytest.mark.parametrize(
    "other", [np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float64), None]
)
def test_outputs_that_do_not_fit_together_are_refused(other: Array | None) -> None:
    part = other if other is None else tensor(other)
    one = tensor(np.zeros((1, 2), np.float32))
    with pytest.raises(InvalidArgument, match="output 'y' of these rows does not fit together: FP"):
        rows().join("y", [((0,), one), ((1,), part)])


def test_what_has_no_rows_is_not_divided() -> None:
    array = np.zeros(3, np.float32)
    with pytest.raises(InvalidArgument, match=r"a tensor of shape \[3\] has no batch dimension"):
        rows().select(tensor(array, batched=False), [0])
    with pytest.raises(InvalidArgument, match=r"a tensor of shape \[3\] has fewer rows"):
        rows().select(tensor(array), [3])
    decoupled = rows("model_transaction_policy { decoupled: true }")
    with pytest.raises(InvalidArgument, match="which a decoupled ensemble cannot divide"):
        decoupled.select(tensor(array), [0])


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 1)])
def test_a_condition_reads_one_value_of_each_row(shape: tuple[int, ...]) -> None:
    array = np.array([1, 0, 2], np.int16).reshape(shape)
    assert rows().read("c", tensor(array)) == (1, 0, 2)


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (np.zeros((2, 2), np.bool_), r"must have one element in each row but has the shape \[2,2"),
        (np.array([1, np.nan], np.float32), "is not a number"),
    ],
)
def test_a_tensor_that_cannot_decide_is_refused(array: Array, error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        rows().read("c", tensor(array))


def test_a_tensor_that_was_not_given_cannot_decide() -> None:
    with pytest.raises(InvalidArgument, match="tensor 'c' of a condition was not given"):
        rows().read("c", None)
