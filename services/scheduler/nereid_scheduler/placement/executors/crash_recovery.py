"""Decides whether the batch of an instance whose stream broke fails or is retried.

A worker process may crash with a batch in hand. Its executor survives and reports whether the model
had begun the batch. If so, the batch fails, since models have side effects. If not, the batch runs
on another instance. The report and the stream's end arrive on different connections, in any order:

    state       event                                               next state
    open        report about this stream, or about a later one      open; the report is stored
    open        the stream breaks; a report is stored, or none      recovered
                is expected, or the instance has no work
    open        the stream breaks at work before its report         unreported
    unreported  the report about that stream                        recovered
    unreported  the instance reconnects or is unloaded, or its      recovered, without a report
                executor leaves: no report will come
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import error_from_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_scheduler.core.instances.remote_instance import CrashReport
    from nereid_scheduler.placement.executors.sessions import PlacedInstance, Session


class CrashRecovery:
    """Handle each lost instance once."""

    def __init__(self, placed: Mapping[int, PlacedInstance]) -> None:
        self._placed = placed
        # Instances whose streams broke before a crash report, and why their batches run again.
        self._unreported: dict[int, tuple[PlacedInstance, str]] = {}

    def on_stream_closed(self, placed: PlacedInstance, cause: str) -> None:
        """Recover the batches of an instance whose stream broke, or wait for the crash report."""
        instance = placed.instance
        report = instance.crash_reports.pop(instance.crash_stream, None)
        expected = instance.crash_stream > 0 and report is None and not placed.session.gone
        pool = placed.served.pool
        if expected and instance.at_work and pool is not None:
            pool.roster.retire(instance)
            self._unreported[instance.id] = placed, cause
        else:
            _recover(placed, cause, report)

    def on_report(self, session: Session, number: int, report: CrashReport) -> None:
        """Recover the instance that an executor's crash report names, or store the report."""
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
            # The stream may still be open here: its last messages have yet to arrive.
            instance.crash_reports[stream] = report

    def on_reconnected(self, placed: PlacedInstance, stream: int) -> None:
        """Stop waiting for a crash report: on a new stream the instance begins no older batch."""
        self.on_no_report(placed.session, placed.instance.id)
        reports = placed.instance.crash_reports
        for earlier in [number for number in reports if number < stream]:
            del reports[earlier]

    def on_no_report(self, session: Session, number: int) -> None:
        """Recover the instance: it begins none of its old batches, and no report will come."""
        unreported = self._unreported.get(number)
        if unreported is not None and unreported[0].session is session:
            del self._unreported[number]
            _recover(*unreported, None)

    def on_executor_left(self, session: Session) -> None:
        """Recover all instances of an executor whose session ended: no more reports come."""
        for number, (placed, _) in list(self._unreported.items()):
            if placed.session is session:
                self.on_no_report(session, number)


def _recover(placed: PlacedInstance, cause: str, report: CrashReport | None) -> None:
    pool = placed.served.pool
    if pool is None:
        return
    if report is not None:
        error = error_from_code(
            report.error_status.code, report.error_status.message, accepted=True
        )
        pool.fail_begun(placed.instance, report.begun, error)
    # Batches that the report does not name had not begun.
    pool.lose_instance(placed.instance, cause, begun=report is None)
