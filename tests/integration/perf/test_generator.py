"""Loads against the mock server, in one event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from time import monotonic_ns

import numpy as np
import pytest

from nereid_perf.endpoint import Endpoint
from nereid_perf.inputs.plan import InputPlan
from nereid_perf.inputs.source import make_source
from nereid_perf.load.arrivals import Steady, arrivals, repeated_intervals
from nereid_perf.load.concurrency import Constant
from nereid_perf.mock.model import MockModel
from nereid_perf.mock.server import MockServer
from nereid_perf.mock.service_times import ServiceTimes, Stalls
from nereid_perf.plan import Plan, Workload
from nereid_perf.request import Request, RequestSource
from nereid_perf.wire.client import PendingRequest, WireClient
from nereid_perf.wire.clients import new_client
from nereid_perf.workers.generator import (
    ClosedLoop,
    Generator,
    GeneratorOptions,
    OpenLoop,
    TraceLoop,
)
from nereid_perf.workers.rows import CANCELLED, FAILED, OK, RowWriter, rows_of

_MS = 1_000_000
_BODY = b'{"inputs":[]}'
Make = Callable[[WireClient, RowWriter], Generator]


class Source:
    """Any number of requests, or so many sequences of so many requests each."""

    def __init__(self, sequences: int = 0, length: int = 1 << 30) -> None:
        self.sent: list[Request] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._left = [length] * sequences
        self._free = deque(range(sequences))
        self._sequences = sequences
        self._draining = False

    def next_request(self) -> Request | None:
        if self._sequences and not self._free:
            return None
        sequence = self._free.popleft() if self._sequences else -1
        if self._draining:
            if not self._sequences:
                return None
            self._left[sequence] = 1
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        request = Request(_BODY, sequence=sequence, data=len(self.sent))
        self.sent.append(request)
        return request

    def on_end(self, request: Request) -> None:
        self._in_flight -= 1
        if request.sequence >= 0:
            self._left[request.sequence] -= 1
            if self._left[request.sequence]:
                self._free.append(request.sequence)

    def set_draining(self, *, draining: bool) -> None:
        self._draining = draining

    def find_mismatch(self, request: Request, message: bytes, json_bytes: int = 0) -> str:
        assert len(message) > json_bytes > 0
        return "odd" if request.data % 2 else ""


class Trace(Source):
    """Requests with times of their own, in ms."""

    def __init__(self, *times_ms: int) -> None:
        super().__init__()
        self._times = deque(times_ms)

    def due_request(self, elapsed_ns: int) -> Request | None:
        if self._draining or not self._times or self._times[0] * _MS > elapsed_ns:
            return None
        return Request(_BODY, at_ns=self._times.popleft() * _MS)

    def next_request(self) -> Request | None:
        return self.due_request(1 << 62)

    def next_due_ns(self) -> int | None:
        return self._times[0] * _MS if self._times else None


class TraceOfSequences(Trace):
    """Each request's time and sequence; one in flight of each sequence."""

    def __init__(self, *rows: tuple[int, int]) -> None:
        super().__init__(*(time for time, _ in rows))
        self._rows = deque(rows)
        self._waiting: dict[int, deque[Request]] = {}
        self._ready: deque[Request] = deque()

    def due_request(self, elapsed_ns: int) -> Request | None:
        if self._ready:
            return self._ready.popleft()
        while (request := super().due_request(elapsed_ns)) is not None:
            _, sequence = self._rows.popleft()
            request = replace(request, sequence=sequence)
            if sequence not in self._waiting:
                self._waiting[sequence] = deque()
                return request
            self._waiting[sequence].append(request)
        return None

    def on_end(self, request: Request) -> None:
        waiting = self._waiting[request.sequence]
        if waiting:
            self._ready.append(waiting.popleft())
        else:
            del self._waiting[request.sequence]


@asynccontextmanager
async def _client(times: ServiceTimes) -> AsyncIterator[tuple[WireClient, list[Generator]]]:
    """The generator whose client it is is to be put into the list."""
    server = MockServer(MockModel(), times)
    (address,) = await server.listen(("127.0.0.1", 0), None)
    plan = Plan(
        endpoint=Endpoint("http", address),
        workloads=(Workload("any"),),
        make_source=partial(make_source, InputPlan("http")),
        checks_responses=True,
    )
    users: list[Generator] = []

    def on_end(pending: PendingRequest, error: str) -> None:
        users[0].on_end(pending, error)

    client = new_client(plan, on_end)
    await client.open(4)
    try:
        yield client, users
    finally:
        await client.close()
        await server.close()


async def _rows(times: ServiceTimes, make: Make, run_s: float | None = None) -> np.ndarray:
    """What a load shows that ends by itself, or after a time."""
    rows = RowWriter()
    async with _client(times) as (client, users):
        generator = make(client, rows)
        users.append(generator)
        generator.start(monotonic_ns())
        async with asyncio.timeout(30):
            if run_s is not None:
                await asyncio.sleep(run_s)
                generator.stop()
            await generator.idle.wait()
        assert generator.in_flight == 0
    return rows_of(rows.take()[0])


def _open(
    source: RequestSource, blocks: Iterator[np.ndarray], **options: float
) -> tuple[Make, list[OpenLoop]]:
    made: list[OpenLoop] = []

    def make(client: WireClient, rows: RowWriter) -> Generator:
        made.append(OpenLoop(client, source, rows, GeneratorOptions(**options), blocks))  # type: ignore[arg-type]
        return made[0]

    return make, made


async def test_a_closed_loop_has_so_many_in_flight_and_ends_with_its_number() -> None:
    source = Source()
    rows = await _rows(
        ServiceTimes(_MS),
        lambda client, rows: ClosedLoop(
            client, source, rows, GeneratorOptions(most_requests=50), Constant(3)
        ),
    )
    assert rows["outcome"].tolist() == [OK] * 50
    assert source.most_in_flight == 3
    assert np.all(rows["intended"] == rows["sent"])
    assert np.all(rows["sent"] < rows["last"])


async def test_sequences_limit_a_closed_loop_and_are_ended_with_it() -> None:
    source = Source(sequences=2)
    rows = await _rows(
        ServiceTimes(_MS),
        lambda client, rows: ClosedLoop(
            client, source, rows, GeneratorOptions(most_requests=20), Constant(5)
        ),
    )
    # Each sequence's last one comes on top.
    assert len(rows) == 22
    assert source.most_in_flight == 2
    assert {each.sequence for each in source.sent[-2:]} == {0, 1}


async def test_an_open_loop_intends_its_schedule_to_the_nanosecond() -> None:
    make, _ = _open(Source(), arrivals(Steady(500), "constant", seed=0), most_requests=40)
    rows = await _rows(ServiceTimes(0), make)
    intended = np.sort(rows["intended"])
    assert np.diff(intended).tolist() == [2 * _MS] * 39
    assert np.all(rows["sent"] >= rows["intended"])


async def test_what_waits_behind_a_stall_keeps_its_intended_time() -> None:
    stalls = Stalls(after_ns=50 * _MS, for_ns=300 * _MS)
    blocks = arrivals(Steady(200), "constant", seed=0)
    make, made = _open(Source(), blocks, most_requests=100, most_in_flight=1)
    rows = await _rows(ServiceTimes(_MS // 10, stalls=stalls), make)
    response = np.sort(rows["last"] - rows["intended"])
    service = np.sort(rows["last"] - rows["sent"])
    # 60 requests come in the stall; one of them is on the connection.
    assert 250 * _MS < response[-10] < 400 * _MS
    assert np.sum(response > 100 * _MS) >= 40
    assert np.sum(service > 100 * _MS) == 1
    # They did not wait for the client.
    assert made[0].delayed < 50


async def test_an_open_loop_sends_at_once_what_is_due_together() -> None:
    source = Source()
    make, _ = _open(source, repeated_intervals([0, 0, 0, 0, 10 * _MS]), most_requests=20)
    rows = await _rows(ServiceTimes(_MS), make)
    assert source.most_in_flight >= 4
    assert len(rows) == 20


async def test_requests_that_wait_are_bounded_and_those_dropped_are_failures() -> None:
    stalls = Stalls(after_ns=0, for_ns=200 * _MS)
    blocks = arrivals(Steady(1000), "constant", seed=0)
    make, _ = _open(Source(), blocks, most_in_flight=1, most_waiting=5)
    rows = await _rows(ServiceTimes(0, stalls=stalls), make, run_s=0.1)
    # One was in flight, five waited until the end, none of the others was kept.
    failed = rows[rows["outcome"] >= FAILED]
    assert len(failed) == len(rows) - 1
    assert np.all(failed["sent"] == 0)
    assert len(set(failed["outcome"].tolist())) == 2
    assert np.sum(failed["outcome"] == failed["outcome"][-1]) == 5


async def test_a_trace_is_sent_at_its_times_and_ends_with_its_last() -> None:
    rows = await _rows(
        ServiceTimes(0),
        lambda client, rows: TraceLoop(
            client, Trace(0, 5, 5, 40), rows, GeneratorOptions(), speed=2.0
        ),
    )
    intended = rows["intended"] - rows["intended"].min()
    assert sorted(intended.tolist()) == [0, 5 * _MS // 2, 5 * _MS // 2, 20 * _MS]
    assert rows["outcome"].tolist() == [OK] * 4


async def test_a_trace_waits_where_too_many_are_in_flight() -> None:
    rows = await _rows(
        ServiceTimes(20 * _MS),
        lambda client, rows: TraceLoop(
            client, Trace(0, 1, 2), rows, GeneratorOptions(most_in_flight=1), speed=1.0
        ),
    )
    rows = np.sort(rows, order="intended")
    assert np.all(rows["sent"][1:] >= rows["last"][:-1])
    assert np.diff(rows["intended"]).tolist() == [_MS, _MS]


async def test_a_busy_sequence_of_a_trace_holds_up_no_other() -> None:
    source = TraceOfSequences((0, 0), (1, 0), (2, 1), (3, -1))
    made: list[TraceLoop] = []

    def make(client: WireClient, rows: RowWriter) -> Generator:
        made.append(TraceLoop(client, source, rows, GeneratorOptions(), speed=1.0))
        return made[0]

    rows = np.sort(await _rows(ServiceTimes(100 * _MS), make), order="intended")
    assert (np.diff(rows["intended"]) == _MS).all()
    first, second, *others = rows
    # The sequence's second one waits for its first one; the others for nothing.
    assert second["sent"] >= first["last"]
    assert all(each["sent"] < first["last"] for each in others)


async def test_a_trace_may_be_cut_short() -> None:
    rows = await _rows(
        ServiceTimes(0),
        lambda client, rows: TraceLoop(
            client, Trace(0, 0, 0, 0), rows, GeneratorOptions(most_requests=2), speed=1.0
        ),
    )
    assert len(rows) == 2


@pytest.mark.parametrize(("percent", "least", "most"), [(100, 24, 24), (50, 4, 20), (0, 0, 0)])
async def test_a_share_of_requests_is_cancelled(percent: float, least: int, most: int) -> None:
    options = GeneratorOptions(most_requests=24, cancel_percent=percent, seed=1)
    rows = await _rows(
        ServiceTimes(300 * _MS),
        lambda client, rows: ClosedLoop(client, Source(), rows, options, Constant(8)),
    )
    cancelled = rows[rows["outcome"] == CANCELLED]
    assert least <= len(cancelled) <= most
    assert np.all(cancelled["sent"] > 0)
    assert np.all(cancelled["responses"] == 0)


async def test_responses_are_checked() -> None:
    options = GeneratorOptions(most_requests=10, checks_responses=True)
    rows = await _rows(
        ServiceTimes(0),
        lambda client, rows: ClosedLoop(client, Source(), rows, options, Constant(1)),
    )
    assert rows["outcome"].tolist() == [OK, FAILED] * 5


async def test_what_is_abandoned_is_a_failure() -> None:
    rows = RowWriter()
    async with _client(ServiceTimes(0, stalls=Stalls(0, 3600 * 1000 * _MS))) as (client, users):
        loop = ClosedLoop(client, Source(), rows, GeneratorOptions(), Constant(6))
        users.append(loop)
        loop.start(monotonic_ns())
        for _ in count():
            await asyncio.sleep(0.001)
            if loop.in_flight == 6:
                break
        loop.stop()
        assert not loop.idle.is_set()
        loop.abandon()
        assert loop.in_flight == 0
    content, _, texts = rows.take()
    assert rows_of(content)["outcome"].tolist() == [FAILED] * 6
    assert texts == ["no response before the end"]
