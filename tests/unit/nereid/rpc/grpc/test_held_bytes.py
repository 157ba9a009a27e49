"""What the server keeps of requests that are not complete is charged to their client."""

from __future__ import annotations

import gc
import gzip
import os
import tracemalloc

import pytest

from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from tests.support.rpc.connection_harness import ServerHarness, response_of, statuses
from tests.support.rpc.http2_frames import (
    DATA,
    END_STREAM,
    HEADERS,
    REQUEST,
    RST,
    frame,
    message,
    settings,
    to,
    window,
)

GZIP_REQUEST = [*REQUEST, ("grpc-encoding", "gzip")]


def budget_of(connection_bytes: int, total_bytes: int = 1 << 30) -> ByteBudget:
    return ByteBudget(
        BudgetLimits(
            total_bytes=total_bytes, client_bytes=total_bytes, connection_bytes=connection_bytes
        )
    )


def packed(body: bytes) -> bytes:
    return message(gzip.compress(body), 1)


def test_pieces_are_charged_until_the_response() -> None:
    budget = budget_of(1000)
    server = ServerHarness(budget=budget)
    body = message(bytes(500))
    server.feed(server.headers(1, to("/test/Hold")), frame(DATA, 0, 1, body[:300]))
    assert budget.held_bytes == 300
    server.feed(frame(DATA, END_STREAM, 1, body[300:]))
    assert budget.held_bytes == 505
    server.calls[0].reply(b"done")
    assert budget.held_bytes == 0


def test_a_handler_may_release_what_it_has_handed_on() -> None:
    budget = budget_of(1000)
    server = ServerHarness(budget=budget)
    body = message(bytes(500))
    server.feed(server.headers(1, to("/test/Hold")), frame(DATA, 0, 1, body[:300]))
    server.feed(frame(DATA, END_STREAM, 1, body[300:]))
    call = server.calls[0]
    call.release()
    call.release()
    assert budget.held_bytes == call.held_bytes == 0
    call.reply(b"done")
    assert budget.held_bytes == 0


def test_whole_small_requests_are_not_charged() -> None:
    budget = budget_of(1)
    server = ServerHarness(budget=budget)
    server.feed(server.request(1, bytes(5000), "/test/Hold"))
    assert server.calls[0].held_bytes == 0
    server.feed(server.headers(3, to("/test/Hold")), frame(DATA, 0, 3, message(bytes(100))))
    assert budget.held_bytes == 0


def test_a_whole_message_that_waits_for_the_end_of_its_request_is_charged() -> None:
    budget = budget_of(20_000)
    server = ServerHarness(budget=budget)
    for stream in (1, 3):
        server.feed(server.headers(stream), frame(DATA, 0, stream, message(bytes(8000))))
    assert budget.held_bytes == 16_000
    server.feed(server.headers(5), frame(DATA, 0, 5, message(bytes(8000))))
    assert statuses(server) == [str(int(Status.RESOURCE_EXHAUSTED))]
    assert budget.held_bytes == 16_000
    server.feed(frame(DATA, END_STREAM, 1))
    assert budget.held_bytes == 8000
    server.connection.connection_lost()
    assert budget.held_bytes == budget.clients == 0


@pytest.mark.parametrize("path", ["/test/Hold", "/test/Raw"])
@pytest.mark.parametrize("shared", [False, True])
def test_more_than_a_client_may_hold_ends_the_call(path: str, shared: bool) -> None:
    budget = budget_of(1 << 20, 800) if shared else budget_of(600)
    server = ServerHarness(budget=budget)
    cut = message(bytes(1000))
    server.feed(server.headers(1, to(path)), frame(DATA, 0, 1, cut[:400]))
    server.feed(server.headers(3, to(path)), frame(DATA, 0, 3, cut[:400]))
    sent = server.sent_frames()
    status = Status.UNAVAILABLE if shared else Status.RESOURCE_EXHAUSTED
    (trailers,) = [each for each in sent if each.kind == HEADERS]
    assert trailers.stream == 3
    assert trailers.fields["grpc-status"] == str(int(status))
    assert "unfinished requests" in trailers.fields["grpc-message"]
    assert [(each.stream, each.number) for each in sent if each.kind == RST] == [(3, Code.NO_ERROR)]
    assert budget.held_bytes == 400
    # The rest is dropped, and others go on.
    server.feed(frame(DATA, END_STREAM, 3, cut[400:]), frame(DATA, END_STREAM, 1, cut[400:]))
    assert server.http2.error is None


def test_messages_of_streams_are_charged_until_they_are_delivered() -> None:
    budget = budget_of(10_000)
    server = ServerHarness(budget=budget)
    server.feed(server.headers(1, to("/test/Raw")))
    for _ in range(50):
        whole = message(bytes(1000))
        server.feed(frame(DATA, 0, 1, whole[:600]))
        assert budget.held_bytes == 600
        server.feed(frame(DATA, 0, 1, whole[600:]))
        assert budget.held_bytes == 0
    assert server.events == [bytes(1000)] * 50


def test_resets_and_deadlines_release() -> None:
    budget = budget_of(10_000)
    server = ServerHarness(budget=budget)
    cut = message(bytes(1000))[:500]
    server.feed(server.headers(1), frame(DATA, 0, 1, cut))
    server.feed(frame(RST, 0, 1, bytes(4)))
    assert budget.held_bytes == 0
    server.feed(server.headers(3, [*REQUEST, ("grpc-timeout", "1S")]), frame(DATA, 0, 3, cut))
    server.now += 2
    for call in server.deadlines.expire(server.now):
        call.expire()
    assert statuses(server) == ["4"]
    assert budget.held_bytes == 0
    server.feed(frame(DATA, 0, 3, cut))
    assert budget.held_bytes == 0


def test_nothing_is_left_to_the_garbage_collector() -> None:
    budget = budget_of(1 << 24)
    server = ServerHarness(
        Limits(max_frame_bytes=1 << 21, stream_window_bytes=1 << 22), budget=budget
    )
    body = message(bytes(100_000))
    server.feed(server.headers(1), frame(DATA, 0, 1, body[:50_000]))
    server.feed(server.headers(3, to("/test/Raw")), frame(DATA, 0, 3, body[:50_000]))
    del body
    server.calls.clear()
    gc.disable()
    tracemalloc.start()
    try:
        for stream in (7, 9):
            server.feed(server.headers(stream), frame(DATA, 0, stream, message(bytes(1 << 20))))
        server.feed(b"\0\0\0\0")
        assert tracemalloc.get_traced_memory()[0] > 2_000_000
        server.connection.connection_lost()
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
        gc.enable()


# --- inflation


def test_a_long_inflation_is_deferred_and_what_follows_waits() -> None:
    budget = budget_of(1 << 20)
    server = ServerHarness(budget=budget, defer_inflation=True)
    large = os.urandom(30_000) + bytes(70_000)
    chat = [(name, "/test/Raw" if name == ":path" else value) for name, value in GZIP_REQUEST]
    server.feed(server.headers(1, chat))
    server.feed(frame(DATA, 0, 1, packed(large) + packed(b"second") + message(b"third")))
    server.feed(frame(DATA, 0, 1, packed(large)[:1000]))
    server.feed(frame(DATA, END_STREAM, 1, packed(large)[1000:]))
    assert server.events == []
    assert budget.held_bytes > 60_000
    # Others on the connection are not held up.
    server.feed(server.request(3))
    assert response_of(server, 3) == b"hi"
    server.finish_inflation()
    assert server.events == [large, b"second", b"third"]
    server.finish_inflation()
    assert server.events == [large, b"second", b"third", large, "half closed"]
    assert budget.held_bytes == 0
    assert not server.inflations


def test_a_unary_request_is_handled_when_its_message_is_inflated() -> None:
    server = ServerHarness(budget=budget_of(1 << 20), defer_inflation=True)
    server.feed(settings(window=1 << 20))
    server.feed(window(0, 1 << 20), server.headers(1, GZIP_REQUEST))
    server.sent_frames()
    server.feed(frame(DATA, END_STREAM, 1, packed(bytes(100_000))))
    assert server.sent_frames() == []
    assert server.connection.streams[1].paused
    server.finish_inflation()
    assert response_of(server) == bytes(100_000)


def test_short_inflations_are_not_deferred() -> None:
    server = ServerHarness(defer_inflation=True)
    server.feed(server.headers(1, GZIP_REQUEST))
    server.feed(frame(DATA, END_STREAM, 1, packed(bytes(10_000))))
    assert response_of(server) == bytes(10_000)


def test_calls_that_end_meanwhile_ignore_what_was_inflated() -> None:
    budget = budget_of(1 << 20)
    server = ServerHarness(budget=budget, defer_inflation=True)
    for stream in (1, 3, 5):
        server.feed(server.headers(stream, GZIP_REQUEST))
        server.feed(frame(DATA, END_STREAM, stream, packed(bytes(100_000))))
    server.feed(frame(RST, 0, 1, bytes(4)))
    server.finish_inflation()
    call, _ = server.inflations[0]
    server.connection.on_inflated(call, RpcError(Status.INTERNAL, "damaged"))
    assert statuses(server) == [str(int(Status.INTERNAL))]
    call, _ = server.inflations[1]
    server.connection.connection_lost()
    with pytest.raises(RpcError, match="over"):
        call.hold(1)
    server.connection.on_inflated(call, b"late")
    assert server.calls == []
    assert budget.held_bytes == 0


def test_the_window_is_withheld_while_a_message_is_inflated() -> None:
    limits = Limits(stream_window_bytes=100_000)
    server = ServerHarness(limits, budget=budget_of(1 << 20), defer_inflation=True)
    server.feed(server.headers(1, [*GZIP_REQUEST[:-1], ("grpc-encoding", "gzip")]))
    server.feed(frame(DATA, 0, 1, packed(bytes(100_000))))
    server.feed(frame(DATA, 0, 1, message(bytes(70_000))[:60_000]))
    assert server.sent_frames() == []
    server.finish_inflation()
    assert [each.stream for each in server.sent_frames()] == [1]
