"""The executor's life: join the scheduler, stay, join again when it is back, leave when told to.

Runs on the event loop; what happens during a stay is membership.py's business.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nereid.observability.tracing import open_tracer
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import ChannelOptions, SocketChannel
from nereid.services.executor import backends, devices, metrics
from nereid.services.executor.backends.python.supervisor import environments
from nereid.services.executor.session import Membership, Surroundings
from nereid.services.executor.settings import visible_gpus
from nereid.services.executor.shared_tensors import SharedTensors

if TYPE_CHECKING:
    from nereid.observability.metrics_page import Page
    from nereid.services.executor.settings import ExecutorSettings

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
# Services start in any order: only what lasts longer than this is worth a warning.
_PATIENCE_S: Final = 3.0
# A scheduler whose machine is gone says nothing; its instances' streams end with the stay.
_CHANNEL: Final = ChannelOptions(keepalive_interval_s=5.0, keepalive_timeout_s=10.0)
# A model that is stuck must not keep the executor from joining again.
_DROP_TIMEOUT_S: Final = 5.0


class ExecutorService:
    """An executor process's one service."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._leaving = asyncio.Event()
        self._stay: Membership | None = None
        self._batches: Counter[tuple[str, int]] = Counter()

    def write_metrics(self, page: Page) -> None:
        """What this executor counts of itself."""
        metrics.write(page, self._stay, self._batches.items())

    def leave(self) -> None:
        """Begin to end: run() returns when the batches under way are answered."""
        self._leaving.set()

    async def run(self) -> bool:
        """Serve until leave(); whether everything came to its end in time."""
        address = self._settings.scheduler_address
        tls = self._settings.mesh_tls_client(address)
        channel = SocketChannel(address, replace(_CHANNEL, tls=tls))
        # Large files are read here, one at a time so that memory holds.
        describers = ThreadPoolExecutor(1, "describe")
        loads = threading.Semaphore(self._settings.model_load_thread_count)
        shared_tensors = SharedTensors(self._settings.shm_limit_bytes, self._settings.shm_idle_secs)
        said = hello(self._settings)
        said.memory_domain, said.process = shared_tensors.domain, shared_tensors.process
        tracer = open_tracer(self._settings, "executor", said.name)
        surroundings = Surroundings(
            self._settings,
            said,
            channel,
            describers,
            loads,
            tracer,
            tls,
            shared_tensors,
            self._batches,
        )
        tidying = asyncio.ensure_future(_tidy(shared_tensors))
        try:
            return await self._stays(surroundings)
        finally:
            tidying.cancel()
            describers.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(environments.discard)
            await channel.close()
            if tracer is not None:
                await asyncio.to_thread(tracer.close)

    async def _stays(self, surroundings: Surroundings) -> bool:
        loop = asyncio.get_running_loop()
        pause_s, alone_since = _FIRST_PAUSE_S, loop.time()
        told = logging.NOTSET, ""
        while not self._leaving.is_set():
            stay = self._stay = Membership(surroundings)
            reports = asyncio.ensure_future(self._report(stay, surroundings.hello))
            await _first(stay.ended, self._leaving)
            reports.cancel()
            if self._leaving.is_set():
                return await stay.leave(self._settings.exit_timeout_secs)
            await stay.drop(_DROP_TIMEOUT_S, unanswered=True)
            if surroundings.shared_tensors is not None:
                surroundings.shared_tensors.forget()
            if stay.welcomed:
                pause_s, alone_since = _FIRST_PAUSE_S, loop.time()
                told = logging.NOTSET, ""
            else:
                lasts = loop.time() - alone_since > _PATIENCE_S
                tell = logging.WARNING if lasts else logging.INFO, stay.end_reason
                if tell != told:
                    told = tell
                    _log.log(tell[0], "the scheduler cannot be joined: %s", tell[1])
            await _first(self._leaving, timeout_s=pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    async def _report(self, stay: Membership, own: pb.Hello) -> None:
        """Tell how busy this machine is, again and again, beside the event loop: NVML may block."""
        interval_s = self._settings.metrics_interval_ms / 1000
        if not interval_s:
            return
        uuids = [device.uuid for device in own.devices if device.kind == pb.Device.GPU]
        reader = metrics.UsageReader(uuids)
        while not stay.ended.is_set():
            try:
                stay.report(await asyncio.to_thread(reader.read))
            except Exception:
                _log.exception("this machine's usage cannot be told")
                return
            await asyncio.sleep(interval_s)


async def _tidy(shared_tensors: SharedTensors) -> None:
    while True:
        await asyncio.sleep(shared_tensors.pause_s)
        shared_tensors.tidy()


def hello(settings: ExecutorSettings) -> pb.Hello:
    """What this executor tells of itself; GPUs only if a backend here can use them."""
    return pb.Hello(
        name=settings.own_name(),
        host=devices.host_identity(),
        devices=[devices.cpu(), *offered_gpus(settings)],
        backends=backends.available(),
    )


def offered_gpus(settings: ExecutorSettings) -> list[pb.Device]:
    """The GPUs that an executor with these settings has to offer."""
    found = devices.gpus(visible_gpus()) if settings.gpus != "none" else []
    if found and not backends.any_uses_gpus():
        _log.warning("%d GPUs are left alone: no backend installed here can use them", len(found))
        return []
    offered = settings.offered_gpus([device.id for device in found])
    return [device for device in found if device.id in offered]


async def _first(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait for the first of these events."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
