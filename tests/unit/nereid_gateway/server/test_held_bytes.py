"""What the HTTP server keeps of requests is charged to their client, and freed with them."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import TYPE_CHECKING

from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from nereid_gateway.server.connection import HttpConnection
from nereid_gateway.server.limits import HttpLimits
from tests.support.gateway.http_site import ConnectionLog, request

if TYPE_CHECKING:
    from nereid_gateway.server.call import HttpCall

LIMITS = HttpLimits(max_body_bytes=1 << 24, max_pipelined=2)


class Owner(ConnectionLog):
    """Keeps no connections."""

    def on_connected(self, connection: HttpConnection) -> None:
        pass

    def on_disconnected(self, connection: HttpConnection) -> None:
        pass


def ignore(call: HttpCall) -> None:
    """Never responds."""


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, client: str = "10.0.0.1") -> None:
        super().__init__({"peername": (client, 50000)})
        self.written = b""
        self.closed = False
        # That the client's socket does not take.
        self.buffered_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered_bytes

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Peer:
    """A connection, its transport and its calls."""

    def __init__(self, budget: ByteBudget, client: str = "10.0.0.1") -> None:
        self.calls: list[HttpCall] = []
        self.cancelled: list[HttpCall] = []
        self.transport = FakeTransport(client)
        self.connection = HttpConnection(
            self.dispatch, LIMITS, ConnectionLog(), allocate_body=None, budget=budget
        )
        self.connection.connection_made(self.transport)

    def dispatch(self, call: HttpCall) -> None:
        call.on_cancel = lambda: self.cancelled.append(call)
        self.calls.append(call)

    def feed(self, data: bytes) -> None:
        self.connection.data_received(data)


def budget_of(connection_bytes: int, client_bytes: int = 1 << 30) -> ByteBudget:
    return ByteBudget(
        BudgetLimits(
            total_bytes=1 << 30, client_bytes=client_bytes, connection_bytes=connection_bytes
        )
    )


async def test_bodies_are_charged_as_they_arrive_until_they_are_handed_on() -> None:
    budget = budget_of(10_000)
    peer = Peer(budget)
    whole = request("/x", bytes(3000))
    head_bytes = len(whole) - 3000
    peer.feed(whole[:40])
    assert budget.held_bytes == 40
    peer.feed(whole[40 : head_bytes + 1000])
    assert budget.held_bytes == 1000
    peer.feed(whole[head_bytes + 1000 :])
    (call,) = peer.calls
    assert budget.held_bytes == call.held_bytes >= 2000
    call.free_body()
    assert budget.held_bytes == 0
    call.respond(200, ())


async def test_a_body_that_nobody_has_handed_on_is_charged() -> None:
    budget = budget_of(10_000)
    peer = Peer(budget)
    peer.feed(request("/x", bytes(3000)))
    assert budget.held_bytes == 3000
    peer.calls[0].respond(200, ())
    assert budget.held_bytes == 0


async def test_requests_that_are_queued_are_charged() -> None:
    budget = budget_of(100_000)
    peer = Peer(budget)
    peer.feed(request("/x") * 12)
    assert len(peer.calls) == 2
    assert budget.held_bytes == 10 * 2048
    for _ in range(12):
        peer.calls.pop(0).respond(200, ())
    assert budget.held_bytes == 0
    # Two are dispatched, one more fits in the queue.
    budget = budget_of(9000)
    peer = Peer(budget)
    peer.feed(request("/x", bytes(1500)) * 5)
    assert b"HTTP/1.1 503" not in peer.transport.written
    for _ in range(3):
        peer.calls.pop(0).respond(200, ())
    assert b"HTTP/1.1 503" in peer.transport.written
    assert budget.held_bytes == 0


async def test_what_is_left_for_another_turn_is_charged() -> None:
    budget = budget_of(1 << 20)
    peer = Peer(budget)
    peer.feed(request("/x", bytes(20_000)) * 5)
    (first,) = peer.calls
    assert budget.held_bytes >= 100_000
    first.respond(200, ())
    for number in range(1, 5):
        await asyncio.sleep(0)
        peer.calls[number].respond(200, ())
    assert budget.held_bytes == 0


async def test_more_than_a_connection_may_hold_is_refused() -> None:
    budget = budget_of(10_000)
    one, other = Peer(budget), Peer(budget)
    whole = request("/x", bytes(50_000))
    # One request alone may have more.
    one.feed(whole[:40_000])
    one.feed(whole[40_000:])
    assert len(one.calls) == 1
    one.feed(whole[:1000])
    assert budget.held_bytes == one.calls[0].held_bytes
    one.calls[0].respond(200, ())
    head, _, text = one.transport.written.partition(b"503")[2].partition(b"\r\n\r\n")
    assert b"Retry-After: 1" in head
    assert b"unfinished requests" in text
    assert budget.held_bytes == 0
    other.feed(request("/x"))
    assert len(other.calls) == 1


async def test_a_client_has_one_limit_over_its_connections() -> None:
    budget = budget_of(10_000, 10_000)
    cut = request("/x", bytes(20_000))[:6000]
    one, two, stranger = Peer(budget), Peer(budget), Peer(budget, "10.0.0.2")
    for peer in (one, two, stranger):
        peer.feed(cut)
    assert b"503" in two.transport.written
    assert one.transport.written == stranger.transport.written == b""
    one.connection.connection_lost(None)
    stranger.connection.connection_lost(None)
    two.connection.connection_lost(None)
    assert budget.held_bytes == budget.clients == 0


async def test_a_dispatched_body_beyond_the_limit_cancels_its_handler() -> None:
    budget = budget_of(5000)
    peer = Peer(budget)
    peer.feed(request("/x", bytes(4000)))
    peer.feed(request("/x", bytes(4000)))
    assert peer.cancelled == [peer.calls[1]]
    assert budget.held_bytes == 4000


async def test_aborted_uploads_leave_nothing_to_the_garbage_collector() -> None:
    budget = budget_of(1 << 30)
    whole = request("/x", bytes(8 << 20))
    chunked = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n400000\r\n"
    uploads = (whole[: 4 << 20], chunked + bytes(2 << 20))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for upload in uploads:
            connection = HttpConnection(ignore, LIMITS, Owner(), budget=budget)
            connection.connection_made(FakeTransport())
            connection.data_received(upload[:100_000])
            connection.data_received(upload[100_000:])
            assert budget.held_bytes > 1 << 20
            connection.connection_lost(None)
            del connection
        assert not [each for each in gc.get_objects() if type(each) is HttpConnection]
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
        gc.enable()
    assert budget.held_bytes == budget.clients == 0


async def test_unread_responses_are_charged_until_they_are_read_or_the_client_leaves() -> None:
    budget = budget_of(1 << 20)
    peer = Peer(budget)
    peer.connection.data_received(request() * 2)
    first, second = peer.calls
    second.respond(200, [bytes(1000)])
    waiting_bytes = budget.unread_bytes
    assert waiting_bytes > 1000
    first.respond(200, [bytes(5000)])
    peer.transport.buffered_bytes = 6000
    peer.connection.pause_writing()
    assert budget.unread_bytes == 6000
    peer.transport.buffered_bytes = 2000
    peer.connection.close_if_silent(0)
    assert budget.unread_bytes == 2000
    peer.transport.buffered_bytes = 0
    peer.connection.resume_writing()
    assert budget.unread_bytes == 0
    peer.transport.buffered_bytes = 2000
    peer.connection.pause_writing()
    peer.connection.connection_lost(None)
    assert budget.unread_bytes == budget.clients == 0
