"""Finds the length of the warm-up of a server whose load has just begun (MSER-5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH: Final = 5


def warm_up_length(values: Sequence[float]) -> int | None:
    """Return how many first values belong to the warm-up, or `None` without a steady state.

    The warm-up ends where the mean of the rest has the smallest standard error.
    """
    batches = len(values) // _BATCH
    if batches < 4:
        return None
    means = (
        np.asarray(values[: batches * _BATCH], dtype=np.float64).reshape(-1, _BATCH).mean(axis=1)
    )
    left = np.arange(batches, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    errors = (squares - sums**2 / left) / left**2
    half = batches // 2
    best = int(np.argmin(errors[: half + 1]))
    return None if best == half else best * _BATCH
