"""The worker process, which its parent starts by `python -c` with a pipe's descriptor."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

import uvloop

from nereid_perf.load.concurrency import share_of
from nereid_perf.load.shape import arrivals_of, concurrency_of
from nereid_perf.wire.clients import new_client
from nereid_perf.workers.cpu_time import cpu_times_s
from nereid_perf.workers.generator import (
    ClosedLoop,
    Generator,
    GeneratorOptions,
    OpenLoop,
    TraceLoop,
)
from nereid_perf.workers.messages import (
    Begin,
    Connect,
    Connected,
    Decoder,
    Failed,
    Report,
    Start,
    Stop,
    encoded,
)
from nereid_perf.workers.rows import RowWriter

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nereid_perf.measurement import LoadLevel
    from nereid_perf.plan import Plan
    from nereid_perf.request import TimedSource
    from nereid_perf.wire.client import PendingRequest

_REPORT_S: Final = 0.25
# Number of connections that an open loop opens at its beginning.
_FIRST_CONNECTIONS: Final = 8
# The collector should collect what a run leaks, not the objects of its requests.
_GC_THRESHOLD: Final = 100_000


class Worker(asyncio.Protocol):
    """The worker's end of the pipe; `ended` is set once the parent has closed its end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._transport: asyncio.Transport
        self._plan: Plan
        self._worker = 0
        self._rows = RowWriter()
        self._generator: Generator | None = None
        self._report_timer: asyncio.TimerHandle | None = None
        self._end_report: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the pipe."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Handle the messages that are complete with this data."""
        try:
            for message in self._decoder.feed(data):
                self._obey(message)
        except Exception as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the parent is gone)
        """Note that the parent has closed its end."""
        self.ended.set()

    def _obey(self, message: Any) -> None:
        if isinstance(message, Begin):
            self._begin(message)
        elif isinstance(message, Connect):
            self._run(self._connect(message.level))
        elif isinstance(message, Start):
            self._start(message)
        elif isinstance(message, Stop):
            self._run(self._stop(message.drain_s))

    def _begin(self, message: Begin) -> None:
        self._plan, self._worker = message.plan, message.worker
        self._client = new_client(self._plan, self._on_end)

    async def _connect(self, level: LoadLevel) -> None:
        if level.kind == "concurrency":
            in_flight = share_of(int(level.value), self._worker, self._plan.workers)
        else:
            in_flight = min(_FIRST_CONNECTIONS, self._most_in_flight())
        await self._client.open(in_flight)
        self._send(Connected())

    def _start(self, message: Start) -> None:
        plan, worker = self._plan, self._worker
        level, workers = message.level, plan.workers
        source = plan.make_source(worker, workers)
        # A writer sends each error text only once, so each level needs a new one.
        self._rows = RowWriter()
        options = GeneratorOptions(
            cancel_percent=plan.cancel_percent,
            checks_responses=plan.checks_responses,
            seed=plan.seed + worker,
            most_requests=message.most_requests,
            most_in_flight=self._most_in_flight(),
        )
        arrivals = arrivals_of(level, plan.shape, seed=plan.seed, worker=worker, workers=workers)
        # Objects that exist now stay until the end, so exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        shared = (self._client, source, self._rows, options)
        if level.kind == "concurrency":
            concurrency = concurrency_of(level, plan.shape, worker=worker, workers=workers)
            self._generator = ClosedLoop(*shared, concurrency)
        elif arrivals is None:
            timed = cast("TimedSource", source)
            self._generator = TraceLoop(self._client, timed, self._rows, options, speed=level.value)
        else:
            self._generator = OpenLoop(*shared, arrivals)
        self._generator.start(message.start_ns)
        if message.most_requests == 0:
            self._generator.stop()
        # CPU time is counted from the first report to the last, so the first comes with the load.
        delay_s = max(0.0, (message.start_ns - monotonic_ns()) / 1e9)
        self._report_timer = self._loop.call_later(delay_s, self._report_again)
        self._end_report = self._run(self._report_end(self._generator))

    async def _stop(self, drain_s: float) -> None:
        generator = self._generator
        if generator is None:
            return
        generator.stop()
        try:
            async with asyncio.timeout(drain_s):
                await generator.idle.wait()
        except TimeoutError:
            generator.abandon()
        for timer in (self._report_timer, self._end_report):
            if timer is not None:
                timer.cancel()
        self._report(final=True)
        self._generator = None

    def _most_in_flight(self) -> int:
        return max(1, share_of(self._plan.max_in_flight, self._worker, self._plan.workers))

    def _on_end(self, pending: PendingRequest, error: str) -> None:
        if self._generator is not None:
            self._generator.on_end(pending, error)

    def _report_again(self) -> None:
        generator = self._generator
        if generator is None:
            return
        self._report(final=False)
        self._report_timer = self._loop.call_later(_REPORT_S, self._report_again)

    async def _report_end(self, generator: Generator) -> None:
        await generator.idle.wait()
        self._report(final=False)

    def _report(self, *, final: bool) -> None:
        generator = self._generator
        assert generator is not None, "there is no load"
        cpu_s, waited_s = cpu_times_s()
        until_ns = monotonic_ns()
        rows, gaps, new_texts = self._rows.take()
        timings, new_phases = self._rows.timings.take()
        self._send(
            Report(
                until_ns=until_ns,
                cpu_s=cpu_s,
                waited_s=waited_s,
                delayed=generator.delayed,
                in_flight=generator.in_flight,
                rows=rows,
                gaps=gaps,
                new_texts=tuple(new_texts),
                timings=timings,
                new_phases=new_phases,
                ended=generator.idle.is_set(),
                final=final,
            )
        )

    def _send(self, message: Any) -> None:
        self._transport.write(encoded(message))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report a callback's error to the parent: without its request, load is missing."""
        error = context.get("exception")
        self._fail(error if error is not None else RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        # The text of an unexpected error may be empty, so name its class.
        module = type(error).__module__
        known = isinstance(error, OSError) or module.startswith(("nereid.", "nereid_"))
        text = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
        self._send(Failed(text))


async def _serve(descriptor: int) -> None:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    _, worker = await loop.create_connection(Worker, sock=sock)
    loop.set_exception_handler(worker.on_loop_error)
    await worker.ended.wait()


def main() -> None:
    """Run the worker until its parent ends it."""
    # A terminal sends Ctrl-C to both processes, and the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
