"""Makes an instance ready when its stream opens, and handles its loss when the stream breaks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nereid.core.errors import ProtocolError
from nereid.rpc import Status
from nereid_scheduler.core.models.lifecycle import LoadStatus, reason_of

if TYPE_CHECKING:
    from nereid.core.wire.messages import ErrorStatus
    from nereid.pb import nereid_pb2 as pb
    from nereid.timeline.recorder import RecordEvent
    from nereid_scheduler.core.instances.remote_instance import BatchStream
    from nereid_scheduler.placement.executors.crash_recovery import CrashRecovery
    from nereid_scheduler.placement.executors.sessions import PlacedInstance, Session
    from nereid_scheduler.placement.loads.instance_table import InstanceTable
    from nereid_scheduler.placement.loads.instance_update import InstanceUpdates
    from nereid_scheduler.placement.loads.version_lives import VersionLives

_log = logging.getLogger(__name__)


class InstanceStreams:
    """Handles the streams of all instances of all versions, on all executors."""

    def __init__(
        self,
        instances: InstanceTable,
        lives: VersionLives,
        crash_recovery: CrashRecovery,
        updates: InstanceUpdates,
        record_event: RecordEvent,
    ) -> None:
        self._record_event = record_event
        self._instances = instances
        self._lives = lives
        self._crash_recovery = crash_recovery
        self._updates = updates

    def instance_opened(
        self, number: int, stream: BatchStream, process: str = "", crash_stream: int = 0
    ) -> PlacedInstance | None:
        """Make an instance ready for batches, since its stream is open.

        Returns `None` for an unknown instance, a leaving executor, or another executor's process.
        """
        placed = self._instances.placed.get(number)
        if placed is None or placed.session.leaving:
            return None
        if placed.session.process and not placed.session.is_same_process(process):
            return None
        instance, served = placed.instance, placed.served
        old = instance.stream
        if old is not None:
            self.instance_closed(placed, old)
            old.finish()
        self._crash_recovery.on_reconnected(placed, crash_stream)
        instance.stream, instance.crash_stream = stream, crash_stream
        assert served.pool is not None, "placed, but not in service"
        if not placed.slot.passive:
            served.pool.roster.add(instance)
        hosted = placed.session.hosted[served]
        if hosted.was_ever_ready or hosted.ready == len(hosted.instances):
            hosted.was_ever_ready = True
            self._lives.report(served, placed.session, LoadStatus.UP)
        self._updates.on_load_finished(hosted, number)
        self._lives.waiters.notify_all()
        return placed

    def instance_closed(self, placed: PlacedInstance, stream: BatchStream) -> None:
        """Handle the loss of a stream. The instance may reconnect during its executor's session."""
        instance, served, session = placed.instance, placed.served, placed.session
        if instance.stream is not stream:
            return
        instance.stream = None
        cause = f"instance '{instance.name}' of executor '{session.name}' was lost"
        self._record_event("instance lost", instance.name, session.name)
        self._crash_recovery.on_stream_closed(placed, cause)
        hosted = session.hosted[served]
        if session.leaving or instance.id in hosted.surplus:
            self._instances.remove_instance(hosted, instance)
        elif hosted.was_ever_ready and not hosted.ready and hosted.instances:
            self._lives.report(served, session, LoadStatus.LOADING)

    def batch_withdrawn(self, session: Session, report: pb.Withdrawn) -> None:
        """Requeue a batch that an instance has given back without having begun it."""
        placed = self._instances.placed.get(report.instance)
        if placed is None or placed.session is not session or placed.served.pool is None:
            return
        try:
            placed.served.pool.batch_withdrawn(placed.instance, report.batch)
        except ProtocolError as error:
            self.end_stream(placed, error)

    def end_stream(self, placed: PlacedInstance, error: ProtocolError) -> None:
        """End the stream of an instance that broke the protocol. Its batches run elsewhere."""
        instance, stream = placed.instance, placed.instance.stream
        if stream is None:
            return
        _log.error(
            "instance %s of executor '%s' broke the protocol; its stream ends, and its requests"
            " run elsewhere: %s",
            instance.name,
            placed.session.name,
            error,
        )
        self.instance_closed(placed, stream)
        stream.fail(Status.INTERNAL, str(error))

    def instance_unloaded(self, session: Session, number: int) -> None:
        """Forget an unloaded instance: its model is finalized and its memory is free."""
        self._crash_recovery.on_no_report(session, number)
        self._instances.instance_ended(session, number)

    def instance_failed(self, session: Session, number: int, error_status: ErrorStatus) -> None:
        """Handle an instance that could not be loaded, or has failed for good."""
        self._instances.instance_ended(session, number)
        placed = self._instances.placed.get(number)
        if placed is None or placed.session is not session:
            return
        served, hosted = placed.served, session.hosted[placed.served]
        reason = reason_of(error_status.code, error_status.message)
        if hosted.was_ever_ready:
            _log.warning(
                "instance %s of executor '%s' failed: %s",
                placed.instance.name,
                session.name,
                reason,
            )
        else:
            # The version's change of state logs the reason.
            _log.info(
                "instance %s cannot be loaded by executor '%s'", placed.instance.name, session.name
            )
        self._instances.drop_instance(
            hosted, placed.instance, f"instance '{placed.instance.name}' failed"
        )
        if session.leaving:
            # The model itself has not failed: it loaded too late.
            return
        if not hosted.was_ever_ready:
            # As in Triton, if one instance cannot be loaded, the load of its version fails.
            for instance_id in list(hosted.instances):
                cause = f"the load on executor '{session.name}' failed"
                self._instances.unload_instance(self._instances.placed[instance_id], cause)
        self._updates.on_load_finished(hosted, number, reason)
        self._lives.waiters.notify_all()
        if not hosted.ready:
            self._lives.report(served, session, LoadStatus.FAILED, reason)
