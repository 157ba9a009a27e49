"""Tensor shapes as text, and against dims."""

from __future__ import annotations

import pytest

from nereid.core.tensors.shapes import (
    MANY_ELEMENTS,
    bounded_count,
    format_shape,
    shape_fits,
    substitute,
)


def test_a_shape_is_written_as_triton_prints_it() -> None:
    assert format_shape((1, 2, -1)) == "[1,2,-1]"
    assert format_shape([]) == "[]"


@pytest.mark.parametrize(
    ("shape", "dims", "fits"),
    [
        ((2, 3), (2, 3), True),
        ((2, 3), (-1, 3), True),
        ((2, 3), (2, 4), False),
        ((2, 3), (2,), False),
        ((), (), True),
    ],
)
def test_a_shape_fits_dims_that_are_equal_or_variable(
    shape: tuple[int, ...], dims: tuple[int, ...], fits: bool
) -> None:
    assert shape_fits(shape, dims) is fits


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((), 1),
        ((3, 4), 12),
        ((1 << 62,), 1 << 62),
        ((1 << 62, 2), MANY_ELEMENTS),
        ((1 << 62, 4), MANY_ELEMENTS),
        (((1 << 63) - 1,) * 100_000, MANY_ELEMENTS),
        (((1 << 63) - 1,) * 100_000 + (0,), 0),
        ((1,) * 100_000, 1),
    ],
)
def test_elements_are_counted_up_to_what_64_bits_hold(shape: tuple[int, ...], count: int) -> None:
    assert bounded_count(shape) == count


def test_substitute_fills_the_variable_places_in_order() -> None:
    assert substitute([-1, 4, -1], [2, -1, -1], [2, 7, 9]) == (7, 4, 9)
    assert substitute([1], [], []) == (1,)
    # A configuration that left a size open is found out when the array is reshaped.
    assert substitute([-1], [2], [2]) == (-1,)
