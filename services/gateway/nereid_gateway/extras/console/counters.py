"""Values of counters, and their growth since an earlier look at the mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.observability import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.facts import document
    from nereid.observability.metrics_page import Family
    from nereid.observability.samples import Samples

_SIZES: Final = f"{metrics.BATCH_SIZE.name}_bucket"


class Counters:
    """Samples of counters from now and from the beginning of an interval."""

    def __init__(self, now: Samples, before: Samples, elapsed_s: float) -> None:
        """Keep two sets of samples. If the interval's beginning is unknown, both are the same."""
        self._now = now
        self._before = before
        self._elapsed_s = elapsed_s

    def total(self, family: Family) -> int:
        """Return the sum of a metric's samples, or 0 if it has no samples."""
        return int(self._now.total(family.name) or 0)

    def value(self, family: Family) -> float | None:
        """Return the sum of a metric's samples, or `None` if it has no samples."""
        return self._now.total(family.name)

    def by_label(self, family: Family, label: str) -> dict[str, int]:
        """Return the sum of a metric's samples for each value of a label."""
        sums = self._now.by_label(family.name, label)
        return {name: int(value) for name, value in sums.items()}

    def recently(self, family: Family) -> float:
        """Return a counter's growth in the interval, or 0 if the counter restarted."""
        now = self._now.total(family.name) or 0.0
        return max(0.0, now - (self._before.total(family.name) or 0.0))

    def recently_by(self, family: Family, label: str) -> dict[str, int]:
        """Return a counter's growth for each value of a label, without zeros."""
        before = self._before.by_label(family.name, label)
        return {
            name: int(value - before.get(name, 0.0))
            for name, value in self._now.by_label(family.name, label).items()
            if value > before.get(name, 0.0)
        }

    def rate(self, family: Family) -> float:
        """Return a counter's growth per second."""
        return per_second(self.recently(family), self._elapsed_s)

    def rates_by(self, family: Family, label: str) -> dict[str, float]:
        """Return a counter's growth per second for each value of a label, without zeros."""
        counts = self.recently_by(family, label)
        return {name: per_second(count, self._elapsed_s) for name, count in counts.items()}

    def mean_size(self) -> float:
        """Return the mean rows of a batch in the interval, or 0 without batches.

        Successful rows by executions would count failed batches as empty ones.
        """
        name = metrics.BATCH_SIZE.name
        rows, batches = (
            (self._now.total(f"{name}_{part}") or 0.0)
            - (self._before.total(f"{name}_{part}") or 0.0)
            for part in ("sum", "count")
        )
        return round(rows / batches, 2) if batches > 0 else 0.0

    def sizes(self) -> dict[str, int]:
        """Return the number of batches for each upper bound of their size. It is not cumulative."""
        sizes: dict[str, int] = {}
        below = 0
        for labels, value in self._now.samples(_SIZES):
            sizes[labels["le"]] = int(value) - below
            below = int(value)
        return sizes


def per_second(count: float, elapsed_s: float) -> float:
    """Return a count per second, rounded to two digits, or 0 for an empty interval."""
    return round(count / elapsed_s, 2) if elapsed_s > 0 else 0.0


def mean_durations(recently: Callable[[Family], float]) -> document.Latency:
    """Return the mean duration of each phase of the interval's requests, in microseconds.

    recently: returns the growth of a counter in the interval. Without requests, the result is
    empty.
    """
    latencies: document.Latency = {}
    requests = recently(metrics.SUCCESS)
    if requests:
        means = {
            phase: round(recently(family) / requests, 1)
            for phase, family in metrics.DURATIONS.items()
        }
        latencies.update(means)  # type: ignore[typeddict-item]
    return latencies
