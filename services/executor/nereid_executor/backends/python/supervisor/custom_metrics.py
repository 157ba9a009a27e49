"""Collects the metrics that models on this executor define, for the scheduler."""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from nereid.observability.custom_series import GAUGE, SeriesKey, series_key, sum_of
from nereid.observability.metrics import declared_families
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

_HISTOGRAM = "histogram"
# Series of one instance; further ones are refused.
MAX_SERIES = 10_000
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
# Characters of a name, its description and its labels together, and bounds of a histogram.
_MAX_TEXT = 8192
_MAX_BOUNDS = 1000
_SUFFIXES = ("", "_bucket", "_sum", "_count", "_total", "_created")
_DECLARED = frozenset(
    family.name + suffix for family in declared_families() for suffix in _SUFFIXES
)
_KINDS = ("counter", GAUGE, _HISTOGRAM)


class CustomMetrics:
    """All series of all instances. Several models may have series with the same name and labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[Any, int], pb.CustomSeries] = {}
        # `_models` maps an instance (the holder of series) to its model. `_counted` sums the series
        # of ended workers, so that counters on the metrics page do not fall.
        self._models: dict[Any, str] = {}
        self._numbers: Counter[Any] = Counter()
        self._counted: dict[tuple[str, SeriesKey], pb.CustomSeries] = {}
        # Maps an owner to its callback. Any thread may call it, once after the first change since
        # the last read().
        self.on_change: dict[Any, Callable[[], None]] = {}
        self._change_reported = False

    def on_message(self, holder: Any, model: str, message: list[Any]) -> None:
        """Handle a worker's message: a series is new, is gone, or has a new value.

        Raises ValueError, TypeError, KeyError or IndexError for a malformed message.
        """
        what, number, *rest = message
        key = holder, int(number)
        with self._lock:
            if what == "gone":
                if self._series.pop(key, None) is not None:
                    self._numbers[holder] -= 1
            elif what == "new":
                name, description, kind, labels, bounds = rest
                _check_series(name, description, labels, bounds)
                if self._numbers[holder] >= MAX_SERIES:
                    raise ValueError(f"more than {MAX_SERIES} series")
                series = pb.CustomSeries(
                    name=name,
                    description=description,
                    kind=_KINDS[kind],
                    labels=labels,
                    bounds=bounds,
                    counts=[0] * (len(bounds) + 1) if _KINDS[kind] == _HISTOGRAM else [],
                    model=model,
                )
                if key not in self._series:
                    self._numbers[holder] += 1
                self._models[holder] = model
                self._series[key] = series
            else:
                value, counts = rest
                series = self._series[key]
                if len(counts) != len(series.counts):
                    raise ValueError("counts that do not fit the bounds")
                # Series are ordered by their last change.
                self._series[key] = self._series.pop(key)
                series.value = value
                series.counts[:] = counts
        self._report_change()

    def on_worker_end(self, holder: Any) -> None:
        """Keep the counts of a worker that has ended and will be replaced."""
        with self._lock:
            self._end_worker(holder)
        self._report_change()

    def remove_holder(self, holder: Any) -> None:
        """Remove an unloaded instance. With the model's last instance, drop the kept counts too."""
        with self._lock:
            self._end_worker(holder)
            model = self._models.pop(holder, None)
            if model not in self._models.values():
                for counted in [key for key in self._counted if key[0] == model]:
                    del self._counted[counted]
        self._report_change()

    def _end_worker(self, holder: Any) -> None:
        self._numbers.pop(holder, None)
        for held in [key for key in self._series if key[0] is holder]:
            series = self._series.pop(held)
            if series.kind != GAUGE:
                key = series.model, series_key(series)
                self._counted[key] = sum_of(self._counted.get(key), series)

    def read(self) -> pb.CustomMetrics:
        """Return all series; the series that changed last is at the end."""
        with self._lock:
            self._change_reported = False
            return pb.CustomMetrics(series=[*self._counted.values(), *self._series.values()])

    def _report_change(self) -> None:
        if not self._change_reported and self.on_change:
            self._change_reported = True
            for on_change in list(self.on_change.values()):
                on_change()


def _check_series(name: str, description: str, labels: dict[str, str], bounds: list[float]) -> None:
    """Raise ValueError for a series that would break the page or stand in for one of Nereid's."""
    texts = (name, description, *labels, *labels.values())
    if sum(map(len, texts)) > _MAX_TEXT or len(bounds) > _MAX_BOUNDS:
        raise ValueError("a series that is too large")
    if not _NAME.match(name) or not all(map(_LABEL.match, labels)):
        raise ValueError("a name that metrics cannot have")
    if name in _DECLARED:
        raise ValueError(f"{name} is a metric of Nereid's")


METRICS = CustomMetrics()
