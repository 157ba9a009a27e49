"""The metrics that models on this executor make, kept until whoever shows them asks.

Told by the instances' threads, read by the event loop.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS = ("counter", "gauge", "histogram")


class CustomMetrics:
    """All series by who holds them: several models may hold one and the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[Any, int], pb.CustomSeries] = {}
        # Called from any thread once something has changed that was not read yet.
        self.on_change: Callable[[], None] | None = None
        self._told = False

    def hear(self, holder: Any, message: list[Any]) -> None:
        """A worker's message; raises ValueError, TypeError or IndexError if it makes no sense."""
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
                    counts=[0] * (len(bounds) + 1) if bounds else [],
                )
            else:
                value, counts = rest
                series = self._series[key]
                # The newest is last.
                self._series[key] = self._series.pop(key)
                series.value = value
                series.counts[:] = counts
        self._changed()

    def forget(self, holder: Any) -> None:
        with self._lock:
            for key in [each for each in self._series if each[0] is holder]:
                del self._series[key]
        self._changed()

    def read(self) -> pb.CustomMetrics:
        """All series, the one that changed last at the end."""
        with self._lock:
            self._told = False
            return pb.CustomMetrics(series=self._series.values())

    def _changed(self) -> None:
        if not self._told and self.on_change is not None:
            self._told = True
            self.on_change()


METRICS = CustomMetrics()
