"""One session with a scheduler: the Join stream, and the instances that the scheduler asked for."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.methods import EXECUTOR_KEY, JOIN_PATH
from nereid.core.wire.codecs import read_log_rules
from nereid.observability.logging import apply_log_rules
from nereid.pb import nereid_pb2 as pb
from nereid.timeline.collection import NO_FRAMES
from nereid_executor.backends.python.supervisor.custom_metrics import METRICS
from nereid_executor.batch.timeline import TimelineReplies
from nereid_executor.core.mesh_client import Mesh
from nereid_executor.core.paced_call import PacedCall
from nereid_executor.instances.descriptions import SessionDescriptions
from nereid_executor.instances.session_instances import SessionInstances
from nereid_executor.session.authorized_mesh import AuthorizedMesh

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import MeshClient
    from nereid.rpc import Channel, RpcError, StreamHandle
    from nereid_executor.core.recent_runs import RecentRuns
    from nereid_executor.instances.description_runs import DescriptionRuns
    from nereid_executor.instances.descriptions import Descriptions
    from nereid_executor.instances.session_instances import ExecutorInstances
    from nereid_executor.instances.tenure import SchedulerEndpoint
    from nereid_executor.settings import ExecutorSettings

_log = logging.getLogger(__name__)

# The scheduler may have sent batches before it knew that this executor leaves.
_LEAVING_GRACE_S: Final = 0.2
# Seconds from a load or unload to the garbage collection, and between two collections. A collection
# stops all threads for tens of milliseconds, and many models may load.
_FREEZE_PAUSE_S: Final = 0.5
_FREEZE_INTERVAL_S: Final = 10.0
# Seconds between reports. Models may change their metrics with each request.
_METRICS_PAUSE_S: Final = 0.1


def freeze_objects() -> None:
    """Exempt loaded models' objects from garbage collections, which would visit all of them."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class SessionContext:
    """Objects that all sessions share and that outlive a session."""

    settings: ExecutorSettings
    hello: pb.Hello
    description_runs: DescriptionRuns
    descriptions: Descriptions
    instances: ExecutorInstances
    drain: Callable[[], None]
    # Client of the models of all sessions, if there are several schedulers.
    mesh: Mesh | None = None
    # Called some time after models were loaded or closed.
    freeze: Callable[[], None] = freeze_objects


class SchedulerSession:
    """One session, from Hello to the end of the stream. Used only on the event loop."""

    def __init__(
        self, context: SessionContext, channel: Channel, endpoint: SchedulerEndpoint
    ) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self.end_reason = ""
        self.accepted = False
        # True once the scheduler has sent a command: it then asks for the kept instances that it
        # wants.
        self.is_commanded = False
        self._stream: StreamHandle = channel.stream(
            JOIN_PATH,
            metadata=((EXECUTOR_KEY, context.instances.context.process),),
            on_message=self._on_message,
            on_close=self._on_close,
            on_open=self._on_accepted,
            on_writable=self._on_writable,
        )
        timeline = context.instances.context.timeline
        self._timeline_replies = TimelineReplies(
            NO_FRAMES if timeline is None else timeline.own,
            self._send_event,
            lambda: self._stream.buffered_bytes,
        )
        freezes = PacedCall(
            self._loop, context.freeze, delay_s=_FREEZE_PAUSE_S, interval_s=_FREEZE_INTERVAL_S
        )
        self._metrics = PacedCall(
            self._loop, self._send_metrics, delay_s=0.0, interval_s=_METRICS_PAUSE_S
        )
        self._descriptions = SessionDescriptions(
            context.instances,
            context.descriptions,
            context.description_runs,
            lambda described: self._send_event(pb.ExecutorEvent(described=described)),
            lambda progress: self._send_event(pb.ExecutorEvent(load_progress=progress)),
        )
        settings = context.settings
        memory = settings.shm_limit_bytes, settings.shm_idle_secs
        # With several schedulers, requests of models outlive the session.
        self._own_mesh: Mesh | None = None
        self._authorized_mesh: AuthorizedMesh | None = None
        mesh: MeshClient
        if context.mesh is None:
            domain = context.hello.shm_namespace
            mesh = self._own_mesh = Mesh(channel, domain, memory)
            endpoint = replace(endpoint, link_domain=domain)
        else:
            mesh = self._authorized_mesh = AuthorizedMesh(
                context.mesh, lambda query: self._send_event(pb.ExecutorEvent(call_query=query))
            )
        self.instances = SessionInstances(
            context.instances, endpoint, mesh, self._send_event, freezes.schedule
        )
        hello = pb.Hello()
        hello.CopyFrom(context.hello)
        hello.begun_requests.extend(self._recent_runs.begun_ids())
        self._send_event(pb.ExecutorEvent(hello=hello))
        self._shared.begun.session_joined(self.instances, hello.begun_requests)
        METRICS.on_change[self] = lambda: self._run_on_loop(self._metrics.schedule)

    @property
    def _shared(self) -> ExecutorInstances:
        return self._context.instances

    @property
    def _recent_runs(self) -> RecentRuns:
        return self._shared.context.recent_runs

    def report_usage(self, usage: pb.DeviceUsage) -> None:
        """Send the usage of the devices to the scheduler."""
        self._send_event(pb.ExecutorEvent(usage=usage))

    async def leave(self, timeout_s: float) -> bool:
        """Notify the scheduler, complete batches and end; return False if instances still run."""
        deadline = self._loop.time() + timeout_s
        self._send_event(pb.ExecutorEvent(leaving=pb.Leaving()))
        instances = self.instances
        if any(instances):
            await wait_for_any(self.ended, timeout_s=_LEAVING_GRACE_S)
        if any(instance.has_states for instance in instances):
            await self._hand_over_states(timeout_s)
        instances.stop_all()
        left_s = max(0.0, deadline - self._loop.time())
        finished = await wait_for_any(instances.none_left, timeout_s=left_s)
        if not self.ended.is_set():
            self._stream.half_close()
            await wait_for_any(self.ended, timeout_s=_LEAVING_GRACE_S)
            self._stream.cancel()
        return finished

    async def _hand_over_states(self, timeout_s: float) -> None:
        keepers = []
        for instance in self.instances:
            if instance.has_states:
                keepers.append(instance)
            else:
                instance.stop()
        if not await wait_for_any(self.ended, self.instances.none_left, timeout_s=timeout_s):
            names = ", ".join(instance.spec.name for instance in keepers)
            _log.warning("the states of sequences were not all moved in time: instances=%s", names)

    async def give_up_instances(self) -> None:
        """Let instances finish, and keep them; called when the session has ended."""
        instances = self.instances
        instances.abandon_all()
        times = self._shared.context.times
        await wait_for_any(instances.none_left, timeout_s=times.executor_report_s)
        instances.report_end()
        await wait_for_any(instances.none_left, timeout_s=times.instance_stop_s)
        instances.expire()

    def _send_event(self, event: pb.ExecutorEvent) -> None:
        if not self.ended.is_set():
            self._stream.send(event.SerializeToString())

    def _on_close(self, error: RpcError | None) -> None:
        self.end_reason = "by the scheduler" if error is None else error.message
        (_log.info if self.accepted else _log.debug)("the stream Join ended: %s", self.end_reason)
        if self._own_mesh is not None:
            self._own_mesh.close()
        if self._authorized_mesh is not None:
            self._authorized_mesh.close()
        METRICS.on_change.pop(self, None)
        self._timeline_replies.close()
        self._shared.begun.session_disconnected(self.instances)
        self.ended.set()

    def _on_writable(self) -> None:
        self._timeline_replies.writable.set()

    def _on_accepted(self) -> None:
        self.accepted = True

    def _on_message(self, message: bytes) -> None:
        if not self.is_commanded:
            # A scheduler of an older release sends no acceptance before its first command.
            self.accepted = self.is_commanded = True
            # The scheduler knows its models now, and will ask for the kept instances that it wants.
            self._shared.kept.restart_timer()
            # Metrics of kept models may not change again.
            self._metrics.schedule()
        try:
            command = pb.ExecutorCommand.FromString(message)
        except DecodeError:
            _log.exception("malformed command from the scheduler; ignored")
        else:
            self._on_command(command)

    def _on_command(self, command: pb.ExecutorCommand) -> None:  # noqa: C901, PLR0912 - a table
        match command.WhichOneof("command"):
            case "describe":
                self._descriptions.describe(command.describe)
            case "load":
                self.instances.load(command.load)
            case "unload":
                self.instances.unload(command.unload.instance, keep=command.unload.keep)
            case "log_rules":
                apply_log_rules(read_log_rules(command.log_rules))
            case "release":
                self._shared.context.shared_tensors.release_segments(command.release)
            case "readiness_query":
                self._on_readiness_query(command.readiness_query)
            case "withdraw":
                self._on_withdraw(command.withdraw)
            case "recall":
                self._on_recall(command.recall.request)
            case "report_timeline":
                self._timeline_replies.begin(command.report_timeline)
            case "report_begun":
                self._on_report_begun(command.report_begun)
            case "access_control" if self._authorized_mesh is not None:
                self._authorized_mesh.enable()
            case "call_rights" if self._authorized_mesh is not None:
                self._authorized_mesh.on_rights(command.call_rights)
            case "drain" if self._context.hello.drains:
                _log.info("a scheduler asks this executor to drain")
                self._context.drain()
            case _:
                _log.warning("unknown command from the scheduler; is it of a newer release?")

    def _on_readiness_query(self, query: pb.ReadinessQuery) -> None:
        def on_response(ready: bool | None) -> None:
            report = pb.ReadinessReport(question=query.question, instance=query.instance)
            report.ready, report.asked = ready is True, ready is None
            self._run_on_loop(lambda: self._send_event(pb.ExecutorEvent(readiness_report=report)))

        instance = self.instances.find(query.instance)
        if instance is None:
            on_response(False)
        else:
            instance.query_readiness(on_response)

    def _on_withdraw(self, command: pb.Withdraw) -> None:
        instance = self.instances.find(command.instance)
        if instance is not None and instance.withdraw(command.batch):
            withdrawn = pb.Withdrawn(instance=command.instance, batch=command.batch)
            self._send_event(pb.ExecutorEvent(withdrawn=withdrawn))

    def _on_report_begun(self, query: pb.ReportBegun) -> None:
        begun = self._shared.begun
        self._shared.carry_out(begun.session_asks(self.instances, query.query, query.scheduler))

    def _on_recall(self, request: int) -> None:
        def on_recalled(response: pb.InferResponse | None) -> None:
            recalled = pb.Recalled(request=request, response=response)
            self._run_on_loop(lambda: self._send_event(pb.ExecutorEvent(recalled=recalled)))

        self._recent_runs.recall(request, on_recalled)

    def _run_on_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            _log.debug("an instance outlived the event loop")

    def _send_metrics(self) -> None:
        self._send_event(pb.ExecutorEvent(custom_metrics=METRICS.read()))


async def wait_for_any(*events: asyncio.Event, timeout_s: float | None = None) -> bool:
    """Wait until one of the events is set; return False if none is set in time."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()
