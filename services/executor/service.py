"""The executor's life: one session with the scheduler after another, until leave().

Runs on the event loop; what happens during a session is session.py's business.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid.mesh_auth.roles import Role
from nereid.observability.tracing import open_tracer
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import ChannelOptions, SocketChannel
from nereid.rpc.net.backoff import BackoffOptions
from nereid.services.executor import devices, metrics
from nereid.services.executor.backends.python.supervisor import environments
from nereid.services.executor.backends.python.supervisor.stopped_workers import STOPPED_WORKERS
from nereid.services.executor.cores import usable_cores
from nereid.services.executor.instance import InstanceContext
from nereid.services.executor.session import SchedulerSession, SessionContext
from nereid.services.executor.settings import visible_gpus
from nereid.services.executor.shared_tensors import SharedTensors

if TYPE_CHECKING:
    from nereid.observability.metrics_page import Page
    from nereid.rpc import Channel, ThreadStreams
    from nereid.services.executor.backends.registry import BackendRegistry
    from nereid.services.executor.settings import ExecutorSettings

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
# Short enough for a scheduler that has just started to wait for what this executor still runs
# (services/scheduler/requests/first_runs.py).
_LONGEST_PAUSE_S: Final = 1.0
# A scheduler that is being started is found a tenth of its start-up time after it listens.
_BACKOFF: Final = BackoffOptions(first_s=0.02, factor=1.2, largest_s=1.0)
# Services start in any order: a scheduler that is missing for longer is worth a warning.
_WARN_AFTER_S: Final = 3.0
# A model that hangs must not keep the executor from the next session.
_STOP_TIMEOUT_S: Final = 5.0
# Most instances stop within this time, and have then told of all that they ran.
_REPORT_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True)
class LocalScheduler:
    """The way to a scheduler in this process, for all but models' own processes, which dial."""

    channel: Channel
    thread_streams: ThreadStreams
    # How long a lone request may take that the event loop executes itself; 0: none.
    inline_limit_ns: int


class ExecutorService:
    """One executor. Create it inside the event loop that it shall run in."""

    def __init__(
        self,
        settings: ExecutorSettings,
        backends: BackendRegistry,
        local: LocalScheduler | None = None,
    ) -> None:
        """local: a scheduler in this process; else settings say where it is."""
        self._settings = settings
        self._backends = backends
        self._local = local
        self._exit_timeout_s = settings.exit_timeout_secs
        self._leaving = asyncio.Event()
        self._session: SchedulerSession | None = None
        self._ended_batches: Counter[tuple[str, int]] = Counter()

    def write_metrics(self, page: Page) -> None:
        """Of the executor itself, not of the mesh."""
        metrics.write_metrics(page, self._session, self._ended_batches)

    def leave(self, timeout_s: float | None = None) -> None:
        """Begin to end: run() returns when the current batches are completed, or after timeout_s
        (by default --exit-timeout-secs).
        """
        if timeout_s is not None:
            self._exit_timeout_s = timeout_s
        self._leaving.set()

    async def run(self) -> bool:
        """Serve until leave(); False: a batch was still running at the end of its time."""
        settings, local = self._settings, self._local
        address = settings.scheduler_address
        # A scheduler that does not reply ends the session, and with it its instances' streams.
        options = settings.mesh_channel(
            address, Role.EXECUTOR, settings.with_keepalive(ChannelOptions(backoff=_BACKOFF))
        )
        channel = SocketChannel(address, options) if local is None else local.channel
        # One thread: describing may read a whole large file into memory.
        describe_pool = ThreadPoolExecutor(1, "describe")
        shared_tensors = SharedTensors(settings.shm_limit_bytes, settings.shm_idle_secs)
        # With GPUs it imports model runtimes, which takes seconds.
        hello = await asyncio.to_thread(make_hello, settings, self._backends)
        hello.shm_namespace, hello.process = shared_tensors.domain, shared_tensors.process
        tracer = open_tracer(settings, "executor", hello.name)
        instances = InstanceContext(
            backends=self._backends,
            scheduler_address=address,
            tls=options.tls,
            credentials=options.credentials,
            load_slots=threading.Semaphore(settings.model_load_thread_count),
            shared_tensors=shared_tensors,
            tracer=tracer,
            thread_streams=None if local is None else local.thread_streams,
            inline_limit_ns=0 if local is None else local.inline_limit_ns,
        )
        context = SessionContext(
            settings,
            hello,
            channel,
            describe_pool,
            instances,
            self._ended_batches,
            cores=settings.cpu_cores or usable_cores(),
        )
        stopped_limit_s = settings.mesh_keepalive_timeout_secs
        tasks = (
            asyncio.ensure_future(_trim_memory(shared_tensors)),
            asyncio.ensure_future(STOPPED_WORKERS.run(stopped_limit_s)),
        )
        try:
            return await self._run_sessions(context)
        finally:
            for task in tasks:
                task.cancel()
            describe_pool.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(environments.discard)
            await channel.close()
            if tracer is not None:
                await asyncio.to_thread(tracer.close)

    async def _run_sessions(self, context: SessionContext) -> bool:
        loop = asyncio.get_running_loop()
        pause_s, alone_since = _FIRST_PAUSE_S, loop.time()
        # Level and reason of the last log line about a failed attempt: each is logged once.
        logged = logging.NOTSET, ""
        predecessor_end: asyncio.Future[None] | None = None
        while not self._leaving.is_set():
            session = self._session = SchedulerSession(context, predecessor_end)
            usage_reports = asyncio.ensure_future(self._report_usage(session, context.hello))
            await _wait_for_any(session.ended, self._leaving)
            usage_reports.cancel()
            if self._leaving.is_set():
                return await session.leave(self._exit_timeout_s)
            if session.accepted:
                if predecessor_end is not None:
                    await predecessor_end
                predecessor_end = asyncio.ensure_future(_end_session(session, context))
                await asyncio.wait((predecessor_end,), timeout=_REPORT_TIMEOUT_S)
                pause_s, alone_since = _FIRST_PAUSE_S, loop.time()
                logged = logging.NOTSET, ""
            else:
                persists = loop.time() - alone_since > _WARN_AFTER_S
                failure = logging.WARNING if persists else logging.INFO, session.end_reason
                if failure != logged:
                    logged = failure
                    _log.log(failure[0], "the scheduler cannot be joined: %s", failure[1])
            jitter = random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            await _wait_for_any(self._leaving, timeout_s=pause_s * jitter)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    async def _report_usage(self, session: SchedulerSession, hello: pb.Hello) -> None:
        """Send how busy this machine is at intervals; read in a thread, since NVML may block."""
        interval_s = self._settings.metrics_interval_ms / 1000
        if not interval_s:
            return
        uuids = [device.uuid for device in hello.devices if device.kind == pb.Device.GPU]
        reader = metrics.UsageReader(uuids)
        while not session.ended.is_set():
            try:
                session.report_usage(await asyncio.to_thread(reader.read))
            except Exception:
                _log.exception("this machine's usage cannot be reported any more")
                return
            await asyncio.sleep(interval_s)


async def _end_session(session: SchedulerSession, context: SessionContext) -> None:
    """Its instances stop, those that execute a batch after that; but room is made in any case."""
    await session.stop_instances(_STOP_TIMEOUT_S, abandon=True)
    context.instances.shared_tensors.discard_all()


async def _trim_memory(shared_tensors: SharedTensors) -> None:
    while True:
        await asyncio.sleep(shared_tensors.trim_interval_s)
        shared_tensors.trim_idle()


def make_hello(settings: ExecutorSettings, backends: BackendRegistry) -> pb.Hello:
    """What this executor offers; GPUs only if a backend here can use them."""
    return pb.Hello(
        name=settings.own_name(),
        host=devices.host_identity(),
        devices=[devices.cpu(), *offered_gpus(settings, backends)],
        backends=backends.available_backends(),
    )


def offered_gpus(settings: ExecutorSettings, backends: BackendRegistry) -> list[pb.Device]:
    """The GPUs that an executor with these settings has to offer."""
    found = devices.gpus(visible_gpus()) if settings.gpus != "none" else []
    if found and not backends.any_uses_gpus():
        _log.warning("%d GPUs are not offered: no backend installed here can use them", len(found))
        return []
    offered = settings.select_gpus([device.id for device in found])
    return [device for device in found if device.id in offered]


async def _wait_for_any(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
