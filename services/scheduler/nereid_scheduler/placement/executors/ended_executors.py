"""Keeps the custom metrics of executors that have left, so that models' counters never fall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.observability.custom_series import GAUGE, SeriesKey, series_key, sum_of
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection, Container

    from nereid_scheduler.placement.executors.sessions import Session

# Maximum number of executors whose counters are kept separately. Separate counters can be dropped
# if their executor comes back.
_MAX_ENDED: Final = 64


class EndedExecutors:
    """Custom counters of executors that have left, for the metrics page."""

    def __init__(self) -> None:
        # Key: an executor's process, which may join again with the same counters.
        self._counted: dict[str, list[pb.CustomSeries]] = {}
        # Sums over executors whose counters are no longer kept separately.
        self._total: dict[tuple[str, SeriesKey], pb.CustomSeries] = {}

    def add(self, session: Session) -> None:
        """Keep the counters of an executor that has left."""
        report = session.custom_metrics
        if report is None:
            return
        # Executors of an older release do not report which model a metric belongs to.
        counted = [series for series in report.series if series.kind != GAUGE and series.model]
        if counted:
            self._counted[session.process or session.name] = counted
        if len(self._counted) > _MAX_ENDED:
            for series in self._counted.pop(next(iter(self._counted))):
                key = series.model, series_key(series)
                self._total[key] = sum_of(self._total.get(key), series)

    def read(self, models: Container[str], sessions: Collection[Session]) -> pb.CustomMetrics:
        """Forget executors that have come back; return the kept counters of these models."""
        for session in sessions:
            if session.custom_metrics is not None:
                self._counted.pop(session.process or session.name, None)
        for process, counted in list(self._counted.items()):
            self._counted[process] = [series for series in counted if series.model in models]
        self._total = {key: series for key, series in self._total.items() if key[0] in models}
        kept = pb.CustomMetrics(series=self._total.values())
        for counted in self._counted.values():
            kept.series.extend(counted)
        return kept
