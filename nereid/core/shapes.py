"""Tensor shapes: how they are written, and whether one is allowed by dims with variable parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The size of a variable dimension.
VARIABLE: Final = -1


def format_shape(shape: Iterable[int]) -> str:
    """A shape as Triton prints it: [1,2,-1]."""
    return f"[{','.join(map(str, shape))}]"


def shape_fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether dims allow a shape: of equal rank, and equal wherever dims are not variable."""
    return len(shape) == len(dims) and all(
        dim in (VARIABLE, size) for size, dim in zip(shape, dims, strict=True)
    )
