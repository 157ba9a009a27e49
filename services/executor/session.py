"""One stay with the scheduler: the Join stream, and the instances that it asked for.

Runs on the event loop, and never blocks it: descriptions are made by worker threads, instances live
in threads of their own. When the stream ends, the stay is over, and every instance with it; the
scheduler then knows nothing of them any more.
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
from nereid.core.methods import JOIN_PATH
from nereid.model_config import write_description
from nereid.observability.logging import follow_log_rules
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.backends.python.supervisor.custom_metrics import METRICS
from nereid.services.executor.instance import Callbacks, Instance, Scheduler
from nereid.services.executor.mesh_client import Mesh

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor as ThreadPool

    from nereid.core.messages import ErrorStatus
    from nereid.observability.tracing import Tracer
    from nereid.rpc import Channel, RpcError, StreamHandle
    from nereid.rpc.net.tls_files import Tls
    from nereid.services.executor.backends.registry import BackendRegistry
    from nereid.services.executor.settings import ExecutorSettings
    from nereid.services.executor.shared_tensors import SharedTensors

_log = logging.getLogger(__name__)


# After Leaving, batches that were on their way still arrive.
LEAVING_GRACE_S: Final = 0.2
# Models may change their metrics with each request.
_METRICS_PAUSE_S: Final = 0.1


@dataclass(frozen=True)
class Surroundings:
    """What a stay needs and does not own."""

    settings: ExecutorSettings
    backends: BackendRegistry
    hello: pb.Hello
    channel: Channel
    describers: ThreadPool
    # Held by instances while they load.
    loads: threading.Semaphore
    tracer: Tracer | None = None
    # For the instances' streams; None: in clear.
    tls: Tls | None = None
    # None: it shares no memory.
    shared_tensors: SharedTensors | None = None
    # Batches of instances that are no more, by model and version.
    batches: Counter[tuple[str, int]] = field(default_factory=Counter)


class Membership:
    """A stay, from Hello to the stream's end; used on the event loop alone."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._in = surroundings
        self._loop = asyncio.get_running_loop()
        self._instances: dict[int, Instance] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        # The stream is over.
        self.ended = asyncio.Event()
        # Why, once it is.
        self.end_reason = ""
        # The scheduler has said something.
        self.welcomed = False
        self._stream: StreamHandle = surroundings.channel.stream(
            JOIN_PATH, on_message=self._on_message, on_close=self._on_close
        )
        # When metrics were told last, or will be.
        self._metrics_due_s = 0.0
        memory = surroundings.settings.shm_limit_bytes, surroundings.settings.shm_idle_secs
        self._mesh = Mesh(surroundings.channel, surroundings.hello.memory_domain, memory)
        self._send(pb.ExecutorEvent(hello=surroundings.hello))
        METRICS.on_change = lambda: self._from_thread(self._tell_metrics_soon)

    @property
    def instances(self) -> list[Instance]:
        """Those that the scheduler asked for and that have not ended."""
        return list(self._instances.values())

    def report(self, usage: pb.DeviceUsage) -> None:
        """Tell the scheduler how busy the devices are."""
        self._send(pb.ExecutorEvent(usage=usage))

    def _tell_metrics_soon(self) -> None:
        """At once, but not more often than now and then."""
        self._metrics_due_s = max(self._loop.time(), self._metrics_due_s + _METRICS_PAUSE_S)
        self._loop.call_at(self._metrics_due_s, self._tell_metrics)

    def _tell_metrics(self) -> None:
        self._send(pb.ExecutorEvent(custom_metrics=METRICS.read()))

    async def leave(self, timeout_s: float) -> bool:
        """Tell the scheduler, finish the batches under way, end; whether all came to an end."""
        self._send(pb.ExecutorEvent(leaving=pb.Leaving()))
        if self._instances:
            await _within(LEAVING_GRACE_S, self.ended.wait())
        finished = await self.drop(timeout_s)
        if not self.ended.is_set():
            self._stream.half_close()
            await _within(LEAVING_GRACE_S, self.ended.wait())
            self._stream.cancel()
        return finished

    async def drop(self, timeout_s: float, *, unanswered: bool = False) -> bool:
        """Stop all instances after the batches under way; whether that took no longer."""
        for instance in self._instances.values():
            instance.stop(unanswered=unanswered)
        return await _within(timeout_s, self._empty.wait())

    def _send(self, event: pb.ExecutorEvent) -> None:
        if not self.ended.is_set():
            self._stream.send(event.SerializeToString())

    def _on_close(self, error: RpcError | None) -> None:
        self.end_reason = "by the scheduler" if error is None else error.message
        (_log.info if self.welcomed else _log.debug)("the stream Join ended: %s", self.end_reason)
        self._mesh.close()
        self.ended.set()

    def _on_message(self, message: bytes) -> None:
        self.welcomed = True
        try:
            command = pb.ExecutorCommand.FromString(message)
        except DecodeError:
            _log.exception("the scheduler sent what is no command")
            return
        match command.WhichOneof("command"):
            case "describe":
                self._describe(command.describe)
            case "load":
                self._load(command.load)
            case "unload":
                self._unload(command.unload.instance)
            case "log_rules":
                follow_log_rules(read_log_rules(command.log_rules))
            case "release":
                if self._in.shared_tensors is not None:
                    self._in.shared_tensors.release(command.release)
            case "readiness_query":
                self._on_readiness_query(command.readiness_query)
            case _:
                _log.warning("the scheduler sent an unknown command; is it of a newer release?")

    def _describe(self, command: pb.Describe) -> None:
        path = Path(self._in.settings.local_path(command.version_path))

        def work() -> pb.Described:
            return described(self._in.backends, command, path)

        def done(task: asyncio.Future[pb.Described]) -> None:
            if not task.cancelled():
                self._send(pb.ExecutorEvent(described=task.result()))

        self._loop.run_in_executor(self._in.describers, work).add_done_callback(done)

    def _load(self, command: pb.LoadInstance) -> None:
        number = command.instance
        if number in self._instances:
            _log.error("the scheduler asked twice for instance %d", number)
            return
        spec = InstanceSpec(
            config=command.config,
            version=command.version,
            version_path=Path(self._in.settings.local_path(command.version_path)),
            name=command.instance_name,
            gpu=command.device_id if command.kind == pb.Device.GPU else None,
            settings=dict(command.backend_settings),
            number=number,
            mesh=self._mesh,
        )
        callbacks = Callbacks(
            loaded=lambda: self._from_thread(_freeze),
            ended=lambda error_status: self._from_thread(
                lambda: self._on_ended(number, error_status)
            ),
            lost=lambda begun, error_status: self._from_thread(
                lambda: self._tell_lost(number, begun, error_status)
            ),
            loads=self._in.loads,
            tracer=self._in.tracer,
        )
        scheduler = Scheduler(self._in.settings.scheduler_address, self._in.tls)
        instance = Instance(number, spec, self._in.backends, scheduler, callbacks)
        shared_tensors = self._in.shared_tensors
        if shared_tensors is not None:
            instance.share(
                shared_tensors, lending=shared_tensors.domain == command.memory_domain != ""
            )
        self._instances[number] = instance
        self._empty.clear()
        instance.start()

    def _unload(self, number: int) -> None:
        instance = self._instances.get(number)
        if instance is None:
            unloaded = pb.InstanceUnloaded(instance=number)
            self._send(pb.ExecutorEvent(instance_unloaded=unloaded))
        else:
            instance.stop()

    def _on_readiness_query(self, asked: pb.ReadinessQuery) -> None:
        told = pb.ReadinessReport(question=asked.question, instance=asked.instance)

        def tell(ready: bool) -> None:
            told.ready = ready
            self._from_thread(lambda: self._send(pb.ExecutorEvent(readiness_report=told)))

        instance = self._instances.get(asked.instance)
        if instance is None:
            tell(False)
        else:
            instance.readiness_query(tell)

    def _from_thread(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            _log.debug("an instance outlived the event loop")

    def _tell_lost(self, number: int, begun: int, error_status: ErrorStatus) -> None:
        lost = pb.InstanceLost(instance=number, begun=begun)
        write_error(error_status, lost.error)
        self._send(pb.ExecutorEvent(instance_lost=lost))

    def _on_ended(self, number: int, error_status: ErrorStatus | None) -> None:
        instance = self._instances.pop(number)
        # A model's own cycles would outlive it among what the collector passes over.
        _freeze()
        self._in.batches[instance.version] += instance.batches
        if not self._instances:
            self._empty.set()
        event = pb.ExecutorEvent()
        if error_status is None:
            event.instance_unloaded.instance = number
        else:
            event.instance_failed.instance = number
            write_error(error_status, event.instance_failed.error)
        self._send(event)


def described(backends: BackendRegistry, command: pb.Describe, version_path: Path) -> pb.Described:
    """The answer to a Describe; called in a worker thread."""
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


def _freeze() -> None:
    """Keep the collector from walking what a load left for good, on every later round."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


async def _within(timeout_s: float, event: Coroutine[object, object, object]) -> bool:
    try:
        await asyncio.wait_for(event, timeout_s)
    except TimeoutError:
        return False
    return True
