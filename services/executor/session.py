"""One session with the scheduler: the Join stream, and the instances that the scheduler requested.

Runs on the event loop and never blocks it: model files are described in a worker thread, instances
live in threads of their own. When the stream ends, the session is over and all its instances with
it, since the scheduler has forgotten them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.backends import InstanceSpec
from nereid.core.codecs import read_log_rules, write_error
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError
from nereid.core.messages import error_status_of
from nereid.core.methods import EXECUTOR_KEY, JOIN_PATH
from nereid.model_config import write_description
from nereid.observability.logging import apply_log_rules
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.backends.python.supervisor.custom_metrics import METRICS
from nereid.services.executor.cores import threads_per_instance
from nereid.services.executor.instance import Instance, InstanceCallbacks
from nereid.services.executor.mesh_client import Mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import ThreadPoolExecutor

    from nereid.core.messages import ErrorStatus
    from nereid.rpc import Channel, RpcError, StreamHandle
    from nereid.services.executor.backends.registry import BackendRegistry
    from nereid.services.executor.instance import InstanceContext
    from nereid.services.executor.settings import ExecutorSettings

_log = logging.getLogger(__name__)

# Batches that were on their way when the scheduler learned that this executor leaves still arrive.
LEAVING_GRACE_S: Final = 0.2
# A collection takes tens of milliseconds, and many models may load at a time.
_FREEZE_PAUSE_S: Final = 0.5
# Models may change their metrics with each request.
_METRICS_PAUSE_S: Final = 0.1


@dataclass(frozen=True)
class SessionContext:
    """What outlives a session."""

    settings: ExecutorSettings
    hello: pb.Hello
    channel: Channel
    describe_pool: ThreadPoolExecutor
    instances: InstanceContext
    # Completed batches of instances that have ended, by model and version.
    ended_batches: Counter[tuple[str, int]] = field(default_factory=Counter)
    # That models' threads may use.
    cores: int = 1


class SchedulerSession:
    """From Hello to the stream's end; used on the event loop alone."""

    def __init__(
        self, context: SessionContext, predecessor_end: asyncio.Future[None] | None = None
    ) -> None:
        """predecessor_end: once the instances of the session before have made room for others."""
        self._context = context
        self._predecessor_end = predecessor_end
        self._loop = asyncio.get_running_loop()
        self._instances: dict[int, Instance] = {}
        self._no_instances = asyncio.Event()
        self._no_instances.set()
        # The stream has ended, and why.
        self.ended = asyncio.Event()
        self.end_reason = ""
        # The scheduler has sent a message: it has accepted this executor.
        self.accepted = False
        self._stream: StreamHandle = context.channel.stream(
            JOIN_PATH,
            metadata=((EXECUTOR_KEY, context.instances.process),),
            on_message=self._on_message,
            on_close=self._on_close,
        )
        # The objects that loads left behind will be frozen.
        self._freeze_due = False
        # When models' metrics were sent last, or will be.
        self._metrics_due_s = 0.0
        settings = context.settings
        memory = settings.shm_limit_bytes, settings.shm_idle_secs
        self._mesh = Mesh(context.channel, context.hello.shm_namespace, memory)
        hello = pb.Hello()
        hello.CopyFrom(context.hello)
        hello.begun_requests.extend(context.instances.recent_runs.begun_ids())
        self._send_event(pb.ExecutorEvent(hello=hello))
        METRICS.on_change = lambda: self._run_on_loop(self._schedule_metrics)

    @property
    def instances(self) -> list[Instance]:
        """Those that have not ended."""
        return list(self._instances.values())

    def report_usage(self, usage: pb.DeviceUsage) -> None:
        """Send the scheduler how busy the devices are."""
        self._send_event(pb.ExecutorEvent(usage=usage))

    async def leave(self, timeout_s: float) -> bool:
        """Notify the scheduler, complete current batches, end; False: instances still run."""
        deadline = self._loop.time() + timeout_s
        self._send_event(pb.ExecutorEvent(leaving=pb.Leaving()))
        if self._instances:
            await _within(LEAVING_GRACE_S, self.ended.wait())
        if any(each.has_states for each in self._instances.values()):
            await self._hand_over_states(timeout_s)
        finished = await self.stop_instances(max(0.0, deadline - self._loop.time()))
        if not self.ended.is_set():
            self._stream.half_close()
            await _within(LEAVING_GRACE_S, self.ended.wait())
            self._stream.cancel()
        return finished

    async def _hand_over_states(self, timeout_s: float) -> None:
        """Stop instances; those with sequences' states when the scheduler has moved these."""
        keepers = []
        for instance in self._instances.values():
            if instance.has_states:
                keepers.append(instance)
            else:
                instance.stop()
        waits = [asyncio.ensure_future(each.wait()) for each in (self.ended, self._no_instances)]
        _, pending = await asyncio.wait(
            waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in pending:
            wait.cancel()
        if len(pending) == len(waits):
            names = ", ".join(each.spec.name for each in keepers)
            _log.warning("sequences' states were not all moved in time from %s", names)

    async def stop_instances(self, timeout_s: float, *, abandon: bool = False) -> bool:
        """Stop all after their current batches; False: some still run after the timeout.

        abandon: their responses can no longer be delivered.
        """
        for instance in self._instances.values():
            instance.stop(abandon=abandon)
        return await _within(timeout_s, self._no_instances.wait())

    # ---- the stream

    def _send_event(self, event: pb.ExecutorEvent) -> None:
        if not self.ended.is_set():
            self._stream.send(event.SerializeToString())

    def _on_close(self, error: RpcError | None) -> None:
        self.end_reason = "by the scheduler" if error is None else error.message
        (_log.info if self.accepted else _log.debug)("the stream Join ended: %s", self.end_reason)
        self._mesh.close()
        self.ended.set()

    def _on_message(self, message: bytes) -> None:
        self.accepted = True
        try:
            command = pb.ExecutorCommand.FromString(message)
        except DecodeError:
            _log.exception("malformed command from the scheduler; ignored")
            return
        match command.WhichOneof("command"):
            case "describe":
                self._on_describe(command.describe)
            case "load":
                self._on_load(command.load)
            case "unload":
                self._on_unload(command.unload.instance)
            case "log_rules":
                apply_log_rules(read_log_rules(command.log_rules))
            case "release":
                self._context.instances.shared_tensors.release_segments(command.release)
            case "readiness_query":
                self._on_readiness_query(command.readiness_query)
            case "withdraw":
                self._on_withdraw(command.withdraw)
            case "recall":
                self._on_recall(command.recall.request)
            case _:
                _log.warning("unknown command from the scheduler; is it of a newer release?")

    def _on_describe(self, command: pb.Describe) -> None:
        context = self._context
        path = Path(context.settings.local_path(command.version_path))

        def work() -> pb.Described:
            return describe_model(context.instances.backends, command, path)

        def done(task: asyncio.Future[pb.Described]) -> None:
            if not task.cancelled():
                self._send_event(pb.ExecutorEvent(described=task.result()))

        self._loop.run_in_executor(context.describe_pool, work).add_done_callback(done)

    def _on_load(self, command: pb.LoadInstance) -> None:
        number = command.instance
        if number in self._instances:
            _log.error("the scheduler requested instance %d twice; ignored", number)
            return
        context = self._context
        spec = InstanceSpec(
            config=command.config,
            version=command.version,
            version_path=Path(context.settings.local_path(command.version_path)),
            name=command.instance_name,
            gpu=command.device_id if command.kind == pb.Device.GPU else None,
            settings=dict(command.backend_settings),
            threads=threads_per_instance(context.cores, command.config),
            number=number,
            mesh=self._mesh,
        )
        callbacks = InstanceCallbacks(
            on_loaded=lambda: self._run_on_loop(self._schedule_freeze),
            on_ended=lambda error_status: self._run_on_loop(
                lambda: self._on_instance_ended(number, error_status)
            ),
            on_model_lost=lambda last_batch, error_status: self._run_on_loop(
                lambda: self._on_model_lost(number, last_batch, error_status)
            ),
        )
        shared = context.instances.shared_tensors.domain == command.shm_namespace != ""
        instance = Instance(spec, context.instances, callbacks, lends_outputs=shared)
        self._instances[number] = instance
        self._no_instances.clear()
        end = self._predecessor_end
        if end is None or end.done():
            instance.start()
        else:
            end.add_done_callback(lambda _: instance.start())

    def _on_unload(self, number: int) -> None:
        instance = self._instances.get(number)
        if instance is None:
            unloaded = pb.InstanceUnloaded(instance=number)
            self._send_event(pb.ExecutorEvent(instance_unloaded=unloaded))
        else:
            instance.stop()

    def _on_readiness_query(self, query: pb.ReadinessQuery) -> None:
        def on_response(ready: bool | None) -> None:
            report = pb.ReadinessReport(question=query.question, instance=query.instance)
            report.ready, report.asked = ready is True, ready is None
            self._run_on_loop(lambda: self._send_event(pb.ExecutorEvent(readiness_report=report)))

        instance = self._instances.get(query.instance)
        if instance is None:
            on_response(False)
        else:
            instance.query_readiness(on_response)

    def _on_withdraw(self, command: pb.Withdraw) -> None:
        instance = self._instances.get(command.instance)
        if instance is not None and instance.withdraw(command.batch):
            withdrawn = pb.Withdrawn(instance=command.instance, batch=command.batch)
            self._send_event(pb.ExecutorEvent(withdrawn=withdrawn))

    def _on_recall(self, request: int) -> None:
        def on_recalled(response: pb.InferResponse | None) -> None:
            recalled = pb.Recalled(request=request, response=response)
            self._run_on_loop(lambda: self._send_event(pb.ExecutorEvent(recalled=recalled)))

        self._context.instances.recent_runs.recall(request, on_recalled)

    # ---- instances and models

    def _run_on_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            _log.debug("an instance outlived the event loop")

    def _on_model_lost(self, number: int, last_batch: int, error_status: ErrorStatus) -> None:
        lost = pb.InstanceLost(instance=number, begun=last_batch)
        write_error(error_status, lost.error)
        self._send_event(pb.ExecutorEvent(instance_lost=lost))

    def _on_instance_ended(self, number: int, error_status: ErrorStatus | None) -> None:
        instance = self._instances.pop(number)
        # Reference cycles of the model would otherwise stay among the frozen objects.
        self._schedule_freeze()
        self._context.ended_batches[instance.version] += instance.batches
        if not self._instances:
            self._no_instances.set()
        event = pb.ExecutorEvent()
        if error_status is None:
            event.instance_unloaded.instance = number
        else:
            event.instance_failed.instance = number
            write_error(error_status, event.instance_failed.error)
        self._send_event(event)

    def _schedule_freeze(self) -> None:
        if not self._freeze_due:
            self._freeze_due = True
            self._loop.call_later(_FREEZE_PAUSE_S, self._freeze)

    def _freeze(self) -> None:
        """Exempt what loads left behind from garbage collections, which would walk all of it."""
        self._freeze_due = False
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _schedule_metrics(self) -> None:
        """Send models' metrics soon, but not more often than every _METRICS_PAUSE_S."""
        self._metrics_due_s = max(self._loop.time(), self._metrics_due_s + _METRICS_PAUSE_S)
        self._loop.call_at(self._metrics_due_s, self._send_metrics)

    def _send_metrics(self) -> None:
        self._send_event(pb.ExecutorEvent(custom_metrics=METRICS.read()))


def describe_model(
    backends: BackendRegistry, command: pb.Describe, version_path: Path
) -> pb.Described:
    """The response to a Describe; called in a worker thread."""
    response = pb.Described(command=command.command)
    try:
        backend = backends.load_backend(command.config.backend)
        write_description(backend.describe(command.config, version_path), response)
    except NereidError as error:
        write_error(error_status_of(error), response.error)
    except Exception:
        _log.exception("model %s could not be described", command.config.name)
        write_error(error_status_of(Internal(INTERNAL_MESSAGE)), response.error)
    return response


async def _within(timeout_s: float, event: Coroutine[object, object, object]) -> bool:
    try:
        await asyncio.wait_for(event, timeout_s)
    except TimeoutError:
        return False
    return True
