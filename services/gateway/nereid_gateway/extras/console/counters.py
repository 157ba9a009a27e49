"""What counters have become, and by how much they have grown since an earlier look. Pure."""

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
    """Samples, and what they were an interval ago."""

    def __init__(self, now: Samples, before: Samples, elapsed_s: float) -> None:
        """before: the same as now where nothing is known of the interval."""
        self._now = now
        self._before = before
        self._elapsed_s = elapsed_s

    def total(self, family: Family) -> int:
        return int(self._now.total(family.name) or 0)

    def value(self, family: Family) -> float | None:
        return self._now.total(family.name)

    def by_label(self, family: Family, label: str) -> dict[str, int]:
        found = self._now.by_label(family.name, label)
        return {name: int(value) for name, value in found.items()}

    def recently(self, family: Family) -> float:
        """In the interval; nothing, if counters began anew."""
        now = self._now.total(family.name) or 0.0
        return max(0.0, now - (self._before.total(family.name) or 0.0))

    def recently_by(self, family: Family, label: str) -> dict[str, int]:
        before = self._before.by_label(family.name, label)
        return {
            name: int(value - before.get(name, 0.0))
            for name, value in self._now.by_label(family.name, label).items()
            if value > before.get(name, 0.0)
        }

    def rate(self, family: Family) -> float:
        """Per second."""
        return per_second(self.recently(family), self._elapsed_s)

    def rates_by(self, family: Family, label: str) -> dict[str, float]:
        found = self.recently_by(family, label)
        return {name: per_second(count, self._elapsed_s) for name, count in found.items()}

    def sizes(self) -> dict[str, int]:
        """The batches by their upper bounds, each in one of them."""
        sizes: dict[str, int] = {}
        below = 0
        for labels, value in self._now.samples(_SIZES):
            sizes[labels["le"]] = int(value) - below
            below = int(value)
        return sizes


def per_second(count: float, elapsed_s: float) -> float:
    return round(count / elapsed_s, 2) if elapsed_s > 0 else 0.0


def mean_durations(recently: Callable[[Family], float]) -> document.Latency:
    """Of the requests of an interval, by phase; empty: there were none. recently: by how much a
    counter has grown in it.
    """
    found: document.Latency = {}
    requests = recently(metrics.SUCCESS)
    if requests:
        means = {
            phase: round(recently(family) / requests, 1)
            for phase, family in metrics.DURATIONS.items()
        }
        found.update(means)  # type: ignore[typeddict-item]
    return found
