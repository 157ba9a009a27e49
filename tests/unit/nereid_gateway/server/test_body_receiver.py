"""Large bodies that are read straight into their buffers, over real sockets and on both loops."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from nereid_gateway.server.call import HttpCall
from nereid_gateway.server.limits import HttpLimits
from nereid_gateway.server.request_reader import RequestReader
from nereid_gateway.server.server import HttpServer
from tests.support.forms import pure_only
from tests.support.gateway.http_site import read_response, request, rest
from tests.support.waiting import until

pytestmark = pure_only

LIMITS = HttpLimits(max_body_bytes=1 << 24, linger_s=0.2)
BODY = random.Random(3).randbytes(3_000_001)
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Buffer:
    """Of the size of a body."""

    def __init__(self, memory: bytearray) -> None:
        self.view = memoryview(memory)

    def __len__(self) -> int:
        return len(self.view)


class Site:
    """A server that responds with what it received."""

    def __init__(self, budget: ByteBudget | None = None) -> None:
        self.direct_bytes = 0
        # Of each body's buffer.
        self.memory: list[bytearray] = []
        site = self

        class Reader(RequestReader):
            def count_body(self, size_bytes: int) -> None:
                site.direct_bytes += size_bytes
                super().count_body(size_bytes)

        self.server = HttpServer(self._echo, LIMITS, Reader, self._allocate, budget)

    def _allocate(self, _call: HttpCall, size_bytes: int) -> Buffer | None:
        if size_bytes < 1 << 16:
            return None
        self.memory.append(bytearray(size_bytes))
        return Buffer(self.memory[-1])

    def _echo(self, call: HttpCall) -> None:
        call.respond(200, (call.body if call.body_buffer is None else call.body_buffer.view,))  # type: ignore[arg-type]


@asynccontextmanager
async def serving(site: Site) -> AsyncIterator[Connect]:
    host, _, port = (await site.server.listen("127.0.0.1:0")).rpartition(":")
    try:
        yield lambda: asyncio.open_connection(host, int(port))
    finally:
        await site.server.close()


@LOOPS
def test_bodies_arrive_as_they_were_sent_and_requests_behind_them_follow(
    run: Callable[..., None],
) -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as connect:
            reader, writer = await connect()
            for pieces in (1, 2, 7):
                data = request("/a", BODY) + request("/b", b"small") + request("/c", BODY[::-1])
                step = len(data) // pieces + 1
                sent = asyncio.ensure_future(send(writer, data, step))
                for expected in (BODY, b"small", BODY[::-1]):
                    assert (await read_response(reader))[::2] == (200, expected)
                await sent
            assert site.direct_bytes > len(BODY)
            writer.close()

    run(test())


async def reject_upload(site: Site, writer: asyncio.StreamWriter) -> None:
    """Begin an upload that stops, and let its time pass."""
    received = site.direct_bytes
    writer.write(request("/a", BODY)[:1_000_000])
    await until(lambda: site.direct_bytes > received)
    (connection,) = site.server._connections
    connection.close_if_silent(asyncio.get_running_loop().time() + 1000)


async def send(writer: asyncio.StreamWriter, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        writer.write(data[start : start + step])
        await writer.drain()


@LOOPS
def test_an_upload_that_stops_is_refused_and_its_connection_closed(
    run: Callable[..., None],
) -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as connect:
            reader, writer = await connect()
            await reject_upload(site, writer)
            # What still comes is read and dropped.
            writer.write(BODY)
            assert b" 408 " in (await rest(reader)).partition(b"\r\n")[0]
            writer.close()

    run(test())


@LOOPS
def test_a_connection_keeps_nothing_of_a_body_that_was_received_or_rejected(
    run: Callable[..., None],
) -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as connect:
            reader, writer = await connect()
            writer.write(request("/a", BODY))
            await read_response(reader)
            await until(lambda: is_unused(site.memory[0]))
            await reject_upload(site, writer)
            await until(lambda: is_unused(site.memory[1]))
            assert site.server.connections == 1
            writer.close()

    run(test())


def is_unused(memory: bytearray) -> bool:
    """Whether no view of it is left."""
    try:
        memory.append(0)
    except BufferError:
        return False
    return True


@LOOPS
def test_a_client_that_leaves_within_its_body(run: Callable[..., None]) -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as connect:
            _, writer = await connect()
            writer.write(request("/a", BODY)[:1_000_000])
            await until(lambda: site.direct_bytes > 0)
            writer.close()
            await until(lambda: site.server.connections == 0)
            reader, writer = await connect()
            writer.write(request("/b", b"next"))
            assert (await read_response(reader))[2] == b"next"
            writer.close()

    run(test())


@LOOPS
def test_bytes_over_the_budget_are_refused_while_they_arrive(run: Callable[..., None]) -> None:
    async def test() -> None:
        huge = 1 << 40
        limits = BudgetLimits(total_bytes=2_000_000, client_bytes=huge, connection_bytes=huge)
        budget = ByteBudget(limits)
        async with serving(Site(budget)) as connect:
            reader, writer = await connect()
            sent = asyncio.ensure_future(send(writer, request("/a", BODY), 1 << 16))
            assert b" 503 " in (await rest(reader)).partition(b"\r\n")[0]
            sent.cancel()
            assert budget.held_bytes == 0
            writer.close()

    run(test())
