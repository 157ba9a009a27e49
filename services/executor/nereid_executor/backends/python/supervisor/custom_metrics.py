"""Collects the metrics that models on this executor define, for the scheduler."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Any

from nereid.observability.custom_series import GAUGE, SeriesKey, series_key, sum_of
from nereid.observability.metrics import declared_families
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_HISTOGRAM = "histogram"
# Series of one instance, and their size as _size_of() has it; further ones are refused. Schedulers
# get all of them with each change.
MAX_SERIES = 10_000
MAX_SIZE = 4 << 20
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


class _Use:
    """Use of the limits by the series of an instance, or by the kept counts of a model."""

    def __init__(self) -> None:
        self.series = 0
        self.size = 0

    def add(self, series: pb.CustomSeries) -> None:
        """Count a series; raise ValueError if it exceeds a limit."""
        size = _size_of(series)
        if self.series >= MAX_SERIES:
            raise ValueError(f"more than {MAX_SERIES} series")
        if self.size + size > MAX_SIZE:
            raise ValueError("series that are too large together")
        self.series += 1
        self.size += size

    def remove(self, series: pb.CustomSeries) -> None:
        """Count a series no longer."""
        self.series -= 1
        self.size -= _size_of(series)


class CustomMetrics:
    """All series of all instances. Several models may have series with the same name and labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[Any, int], pb.CustomSeries] = {}
        # `_models` maps an instance (the holder of series) to its model. `_counted` sums the series
        # of ended workers, so that counters on the metrics page do not fall. Models may give each
        # worker's series other names, so what is kept has limits as well.
        self._models: dict[Any, str] = {}
        self._uses: dict[Any, _Use] = {}
        self._kept_uses: dict[str, _Use] = {}
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
                self._remove(key)
            elif what == "new":
                name, description, kind, labels, bounds = rest
                _check_series(name, description, labels, bounds)
                series = pb.CustomSeries(
                    name=name,
                    description=description,
                    kind=_KINDS[kind],
                    labels=labels,
                    bounds=bounds,
                    counts=[0] * (len(bounds) + 1) if _KINDS[kind] == _HISTOGRAM else [],
                    model=model,
                )
                self._remove(key)
                self._uses.setdefault(holder, _Use()).add(series)
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
                if model is not None:
                    self._kept_uses.pop(model, None)
        self._report_change()

    def _remove(self, key: tuple[Any, int]) -> None:
        series = self._series.pop(key, None)
        if series is not None:
            self._uses[key[0]].remove(series)

    def _end_worker(self, holder: Any) -> None:
        self._uses.pop(holder, None)
        lost = 0
        for held in [key for key in self._series if key[0] is holder]:
            series = self._series.pop(held)
            if series.kind != GAUGE:
                lost += not self._keep_count(series)
        if lost:
            _log.warning(
                "model %s: counts of an ended worker are not kept: series=%d; its workers have"
                " metrics of too many names and labels",
                self._models[holder],
                lost,
            )

    def _keep_count(self, series: pb.CustomSeries) -> bool:
        """Add a series to the kept counts; return False if they are full."""
        key = series.model, series_key(series)
        known = self._counted.get(key)
        if known is None:
            try:
                self._kept_uses.setdefault(series.model, _Use()).add(series)
            except ValueError:
                return False
        self._counted[key] = sum_of(known, series)
        return True

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


def _size_of(series: pb.CustomSeries) -> int:
    texts = (series.name, series.description, *series.labels, *series.labels.values())
    # A histogram has a bound and a count for each bucket.
    return sum(map(len, texts)) + 16 * len(series.bounds)


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
