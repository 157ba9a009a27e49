"""Fits a model's time per batch, t(b) = a + c*b, to measured batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.optimize import nnls

if TYPE_CHECKING:
    from collections.abc import Sequence

# Shorter times are ignored as implausible.
_MIN_US: Final = 1.0
# Relative error that is assumed if only one point was measured.
_UNKNOWN: Final = 0.5


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Fitted times in us, fixed_us + row_us * b; `error` is a relative standard deviation."""

    fixed_us: float
    row_us: float
    error: float
    points: int

    def of(self, batch: float) -> float:
        """Return the time of a batch in us."""
        return self.fixed_us + self.row_us * batch

    @property
    def text(self) -> str:
        """The formula as readable text."""
        return (
            f"t(b) = {self.fixed_us:.0f} + {self.row_us:.1f} b us, within {100 * self.error:.0f} %"
            f" of {self.points} measured batches"
        )


def fit_batch_times(points: Sequence[tuple[float, float]]) -> BatchTimes | None:
    """Fit points (batch size, us) by their relative errors; return `None` without points."""
    usable = [(size, us) for size, us in points if us >= _MIN_US and size > 0]
    if not usable:
        return None
    sizes, times = np.array(usable).T
    if len(set(sizes)) == 1:
        # The points do not show how much of the time is per row, so assume half of it.
        mean = float(times.mean())
        return BatchTimes(mean / 2, mean / 2 / float(sizes[0]), _UNKNOWN, len(usable))
    rows = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    (fixed, row), _ = nnls(rows, np.ones_like(times))
    errors = (fixed + row * sizes) / times - 1
    free = max(len(usable) - 2, 1)
    return BatchTimes(
        float(fixed), float(row), float(np.sqrt((errors**2).sum() / free)), len(usable)
    )
