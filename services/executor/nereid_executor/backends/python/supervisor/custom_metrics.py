"""The metrics that models on this executor make, until they are sent to the scheduler.

Updated by the instances' threads, read by the event loop.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from nereid.observability.custom_series import GAUGE, SeriesKey, series_key, sum_of
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

_HISTOGRAM = "histogram"
_KINDS = ("counter", GAUGE, _HISTOGRAM)


class CustomMetrics:
    """All series by their holders: several models may hold the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[Any, int], pb.CustomSeries] = {}
        # The models of holders, and what their workers that have ended had counted: counters that
        # were shown do not fall.
        self._models: dict[Any, str] = {}
        self._counted: dict[tuple[str, SeriesKey], pb.CustomSeries] = {}
        # By who is interested; called from any thread after the first change since the last
        # read().
        self.on_change: dict[Any, Callable[[], None]] = {}
        self._change_reported = False

    def on_message(self, holder: Any, model: str, message: list[Any]) -> None:
        """A message of a model's worker.

        Raises:
            ValueError, TypeError, KeyError or IndexError: it is malformed.
        """
        what, number, *rest = message
        key = holder, int(number)
        with self._lock:
            if what == "gone":
                self._series.pop(key, None)
            elif what == "new":
                name, description, kind, labels, bounds = rest
                self._models[holder] = model
                self._series[key] = pb.CustomSeries(
                    name=name,
                    description=description,
                    kind=_KINDS[kind],
                    labels=labels,
                    bounds=bounds,
                    counts=[0] * (len(bounds) + 1) if _KINDS[kind] == _HISTOGRAM else [],
                    model=model,
                )
            else:
                value, counts = rest
                series = self._series[key]
                # Moved to the end, where the newest is.
                self._series[key] = self._series.pop(key)
                series.value = value
                series.counts[:] = counts
        self._report_change()

    def on_worker_end(self, holder: Any) -> None:
        """Keep what a worker has counted that is lost; another one takes its place."""
        with self._lock:
            self._end_worker(holder)
        self._report_change()

    def remove_holder(self, holder: Any) -> None:
        """An instance is unloaded; with the last one of its model ends what was counted."""
        with self._lock:
            self._end_worker(holder)
            model = self._models.pop(holder, None)
            if model not in self._models.values():
                for key in [each for each in self._counted if each[0] == model]:
                    del self._counted[key]
        self._report_change()

    def _end_worker(self, holder: Any) -> None:
        for number in [each for each in self._series if each[0] is holder]:
            series = self._series.pop(number)
            if series.kind != GAUGE:
                key = series.model, series_key(series)
                self._counted[key] = sum_of(self._counted.get(key), series)

    def read(self) -> pb.CustomMetrics:
        """All series, the one that changed last at the end."""
        with self._lock:
            self._change_reported = False
            return pb.CustomMetrics(series=[*self._counted.values(), *self._series.values()])

    def _report_change(self) -> None:
        if not self._change_reported and self.on_change:
            self._change_reported = True
            for on_change in list(self.on_change.values()):
                on_change()


METRICS = CustomMetrics()
