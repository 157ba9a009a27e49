"""Tensor shapes: their text form, and checks against dims that may be variable."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VARIABLE: Final = -1
# A higher rank is refused before its data is read: no model has so many dimensions.
MAX_RANK: Final = 1024
# Too large for any message.
MANY_ELEMENTS: Final = 1 << 63
_FEW_DIMENSIONS: Final = 16


def bounded_count(shape: Sequence[int]) -> int:
    """Return the number of elements, at most MANY_ELEMENTS, in time linear in the rank.

    Dimensions must not be negative.
    """
    if len(shape) <= _FEW_DIMENSIONS:
        return min(prod(shape), MANY_ELEMENTS)
    if 0 in shape:
        return 0
    count = 1
    for size in shape:
        count *= size
        if count >= MANY_ELEMENTS:
            return MANY_ELEMENTS
    return count


def format_shape(shape: Iterable[int]) -> str:
    """Return a shape in the form in which Triton prints it: [1,2,-1]."""
    return f"[{','.join(map(str, shape))}]"


def shape_fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Return whether a shape has the rank of dims, and the same size in every fixed dimension."""
    return len(shape) == len(dims) and all(
        dim in (VARIABLE, size) for size, dim in zip(shape, dims, strict=True)
    )


def substitute(into: Sequence[int], dims: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return `into` with its variable dimensions replaced by sizes from `shape`.

    The sizes are those at variable dimensions of `dims`, in order. If there are too few, the rest
    stay variable.
    """
    sizes = iter(size for size, dim in zip(shape, dims, strict=True) if dim == VARIABLE)
    return tuple(next(sizes, -1) if dim == VARIABLE else dim for dim in into)
