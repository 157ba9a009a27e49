"""What models' custom metrics counted on executors that are gone: counters do not fall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.observability.custom_series import GAUGE, SeriesKey, series_key, sum_of
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection, Container

    from nereid_scheduler.placement.executors.sessions import Session

# Of so many it is known which counted what: one that comes back counts once.
_MAX_ENDED: Final = 64


class EndedExecutors:
    """Kept for the metrics page."""

    def __init__(self) -> None:
        # By executors' processes, which may join again with the same counters.
        self._counted: dict[str, list[pb.CustomSeries]] = {}
        # Of those that ended before them, by model.
        self._total: dict[tuple[str, SeriesKey], pb.CustomSeries] = {}

    def add(self, session: Session) -> None:
        """An executor has left."""
        report = session.custom_metrics
        if report is None:
            return
        # Executors of an older release do not say whose metrics they are.
        counted = [each for each in report.series if each.kind != GAUGE and each.model]
        if counted:
            self._counted[session.process or session.name] = counted
        if len(self._counted) > _MAX_ENDED:
            for series in self._counted.pop(next(iter(self._counted))):
                key = series.model, series_key(series)
                self._total[key] = sum_of(self._total.get(key), series)

    def read(self, models: Container[str], sessions: Collection[Session]) -> pb.CustomMetrics:
        """What is kept of these models. A model's metrics end with its unload, and an executor of
        these sessions reports by itself what it has counted.
        """
        for session in sessions:
            if session.custom_metrics is not None:
                self._counted.pop(session.process or session.name, None)
        for process, counted in list(self._counted.items()):
            self._counted[process] = [each for each in counted if each.model in models]
        self._total = {key: each for key, each in self._total.items() if key[0] in models}
        kept = pb.CustomMetrics(series=self._total.values())
        for counted in self._counted.values():
            kept.series.extend(counted)
        return kept
