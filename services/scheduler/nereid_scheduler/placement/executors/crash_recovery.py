"""Fails or retries the batch of an instance whose stream broke.

A worker process that serves its model's stream itself may crash with a batch in hand. Its executor
survives it and reports whether the model had begun to execute that batch: then the batch fails,
since models have side effects; else it runs elsewhere. The report and the stream's end come over
different connections, in either order. Knows no queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import error_from_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_scheduler.core.instances.remote_instance import CrashReport
    from nereid_scheduler.placement.executors.sessions import PlacedInstance, Session


class CrashRecovery:
    """Handles each lost instance once. placed: all instances there are."""

    def __init__(self, placed: Mapping[int, PlacedInstance]) -> None:
        self._placed = placed
        # Instances whose stream broke before their executor's report, and the cause to give if
        # their batches run again.
        self._unreported: dict[int, tuple[PlacedInstance, str]] = {}

    def on_stream_closed(self, placed: PlacedInstance, cause: str) -> None:
        """An instance's stream broke."""
        instance = placed.instance
        report = instance.crash_reports.pop(instance.crash_stream, None)
        expected = instance.crash_stream > 0 and report is None and not placed.session.gone
        model = placed.served.model_version
        if expected and instance.at_work and model is not None:
            model.retire_instance(instance)
            self._unreported[instance.id] = placed, cause
        else:
            _recover(placed, cause, report)

    def on_report(self, session: Session, number: int, report: CrashReport) -> None:
        """An executor reports about an instance."""
        unreported = self._unreported.get(number)
        placed = self._placed.get(number) if unreported is None else unreported[0]
        if placed is None or placed.session is not session:
            return
        instance = placed.instance
        stream = report.stream or instance.crash_stream
        if unreported is not None and stream == instance.crash_stream:
            del self._unreported[number]
            _recover(*unreported, report)
        elif stream > instance.crash_stream or (
            stream == instance.crash_stream and instance.stream is not None
        ):
            # Its last responses, or the stream itself, may still be on their way.
            instance.crash_reports[stream] = report
        # Else the instance has had another stream since: what was lost with that one is over.

    def on_reconnected(self, placed: PlacedInstance, stream: int) -> None:
        """An instance has another stream, with this number: it begins no batch that was sent
        before. No report, or a late one, says what it had begun.
        """
        self.on_no_report(placed.session, placed.instance.id)
        reports = placed.instance.crash_reports
        for number in [each for each in reports if each < stream]:
            del reports[number]

    def on_no_report(self, session: Session, number: int) -> None:
        """An executor begins no batch that an instance was sent before, and reports no crash."""
        unreported = self._unreported.get(number)
        if unreported is not None and unreported[0].session is session:
            del self._unreported[number]
            _recover(*unreported, None)

    def on_executor_left(self, session: Session) -> None:
        """An executor's session ended: it reports nothing more."""
        for number, (placed, _) in list(self._unreported.items()):
            if placed.session is session:
                self.on_no_report(session, number)


def _recover(placed: PlacedInstance, cause: str, report: CrashReport | None) -> None:
    model = placed.served.model_version
    if model is None:
        return
    if report is not None:
        error = error_from_code(
            report.error_status.code, report.error_status.message, accepted=True
        )
        model.fail_begun(placed.instance, report.begun, error)
    # What the report does not name had not begun.
    model.lose_instance(placed.instance, cause, begun=report is None)
