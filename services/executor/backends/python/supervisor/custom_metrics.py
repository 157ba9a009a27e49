"""The metrics that models on this executor make, until they are sent to the scheduler.

Updated by the instances' threads, read by the event loop.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

_HISTOGRAM = "histogram"
_KINDS = ("counter", "gauge", _HISTOGRAM)


class CustomMetrics:
    """All series by their holders: several models may hold the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[Any, int], pb.CustomSeries] = {}
        # By who is interested; called from any thread after the first change since the last
        # read().
        self.on_change: dict[Any, Callable[[], None]] = {}
        self._change_reported = False

    def on_message(self, holder: Any, message: list[Any]) -> None:
        """A worker's message. Raises ValueError, TypeError, KeyError or IndexError if malformed."""
        what, number, *rest = message
        key = holder, int(number)
        with self._lock:
            if what == "gone":
                self._series.pop(key, None)
            elif what == "new":
                name, description, kind, labels, bounds = rest
                self._series[key] = pb.CustomSeries(
                    name=name,
                    description=description,
                    kind=_KINDS[kind],
                    labels=labels,
                    bounds=bounds,
                    counts=[0] * (len(bounds) + 1) if _KINDS[kind] == _HISTOGRAM else [],
                )
            else:
                value, counts = rest
                series = self._series[key]
                # Moved to the end, where the newest is.
                self._series[key] = self._series.pop(key)
                series.value = value
                series.counts[:] = counts
        self._report_change()

    def remove_holder(self, holder: Any) -> None:
        with self._lock:
            for key in [each for each in self._series if each[0] is holder]:
                del self._series[key]
        self._report_change()

    def read(self) -> pb.CustomMetrics:
        """All series, the one that changed last at the end."""
        with self._lock:
            self._change_reported = False
            return pb.CustomMetrics(series=self._series.values())

    def _report_change(self) -> None:
        if not self._change_reported and self.on_change:
            self._change_reported = True
            for on_change in list(self.on_change.values()):
                on_change()


METRICS = CustomMetrics()
