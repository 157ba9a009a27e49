"""Tensor shapes: how they are written, and whether dims with variable parts allow one."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Size of a variable dimension.
VARIABLE: Final = -1
# Maximum rank of a request's tensor. No model has so many dimensions: a tensor that has more is
# refused unread.
MAX_RANK: Final = 1024
# Number of elements that no message can have.
MANY_ELEMENTS: Final = 1 << 63
_FEW_DIMENSIONS: Final = 16


def bounded_count(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape, or MANY_ELEMENTS if there are at least so many.

    Takes shapes of any rank in linear time; dimensions must not be negative.
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
    """Return a shape as Triton prints it: [1,2,-1]."""
    return f"[{','.join(map(str, shape))}]"


def shape_fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Return whether dims allow a shape: of equal rank, and equal wherever not variable."""
    return len(shape) == len(dims) and all(
        dim in (VARIABLE, size) for size, dim in zip(shape, dims, strict=True)
    )


def substitute(into: Sequence[int], dims: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return `into` with the variable sizes of a shape.

    The sizes that `shape` has where `dims` are variable take the places where `into` is variable,
    in their order.
    """
    sizes = iter(size for size, dim in zip(shape, dims, strict=True) if dim == VARIABLE)
    return tuple(next(sizes, -1) if dim == VARIABLE else dim for dim in into)
