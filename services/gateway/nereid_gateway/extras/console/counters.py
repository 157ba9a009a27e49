"""Values of counters, and their growth since an earlier look. Pure."""

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
    """Samples of now and of an interval ago."""

    def __init__(self, now: Samples, before: Samples, elapsed_s: float) -> None:
        """Compare now with before; both are the same if nothing is known of the interval."""
        self._now = now
        self._before = before
        self._elapsed_s = elapsed_s

    def total(self, family: Family) -> int:
        """Return the sum of a metric's samples, and 0 if there are none."""
        return int(self._now.total(family.name) or 0)

    def value(self, family: Family) -> float | None:
        """Return the sum of a metric's samples, and `None` if there are none."""
        return self._now.total(family.name)

    def by_label(self, family: Family, label: str) -> dict[str, int]:
        """Return the sums of a metric's samples by the value of a label."""
        sums = self._now.by_label(family.name, label)
        return {name: int(value) for name, value in sums.items()}

    def recently(self, family: Family) -> float:
        """Return the growth in the interval, and 0 if the counter restarted."""
        now = self._now.total(family.name) or 0.0
        return max(0.0, now - (self._before.total(family.name) or 0.0))

    def recently_by(self, family: Family, label: str) -> dict[str, int]:
        """Return the growth in the interval by the value of a label, without zeros."""
        before = self._before.by_label(family.name, label)
        return {
            name: int(value - before.get(name, 0.0))
            for name, value in self._now.by_label(family.name, label).items()
            if value > before.get(name, 0.0)
        }

    def rate(self, family: Family) -> float:
        """Return the growth per second."""
        return per_second(self.recently(family), self._elapsed_s)

    def rates_by(self, family: Family, label: str) -> dict[str, float]:
        """Return the growth per second by the value of a label, without zeros."""
        counts = self.recently_by(family, label)
        return {name: per_second(count, self._elapsed_s) for name, count in counts.items()}

    def sizes(self) -> dict[str, int]:
        """Return the numbers of batches by the upper bounds of their sizes, not cumulated."""
        sizes: dict[str, int] = {}
        below = 0
        for labels, value in self._now.samples(_SIZES):
            sizes[labels["le"]] = int(value) - below
            below = int(value)
        return sizes


def per_second(count: float, elapsed_s: float) -> float:
    """Return the rate of a count, rounded to two digits, and 0 for an empty interval."""
    return round(count / elapsed_s, 2) if elapsed_s > 0 else 0.0


def mean_durations(recently: Callable[[Family], float]) -> document.Latency:
    """Return the mean durations of an interval's requests by phase, in microseconds.

    The result is empty if there were no requests. recently returns the growth of a counter in the
    interval.
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
