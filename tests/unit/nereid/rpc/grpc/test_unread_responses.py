"""Responses that a client does not read: how long they wait, and what it may send meanwhile."""

from __future__ import annotations

from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from tests.support.rpc.connection_harness import ServerHarness
from tests.support.rpc.http2_frames import (
    DATA,
    GOAWAY,
    HEADERS,
    RST,
    WINDOW,
    frame,
    message,
    settings,
    to,
    window,
)


def test_a_unary_response_without_a_window_times_out() -> None:
    server = ServerHarness(Limits(write_timeout_s=10))
    server.feed(settings(window=3), server.request(1), server.headers(3, to("/test/Raw")))
    server.calls[-1].send(b"more than three bytes")
    server.sent_frames()
    for now in (1, 9):
        server.connection.end_unread_responses(now)
    assert server.sent_frames() == []
    server.feed(window(1, 1))
    assert server.one(DATA).payload == message(b"hi")[3:4]
    for now in (10, 19):
        server.connection.end_unread_responses(now)
    assert server.sent_frames() == []
    server.connection.end_unread_responses(20)
    reset = server.one(RST)
    # What waits in a stream is its owner's affair, if it is not large.
    assert (reset.stream, reset.number) == (1, Code.CANCEL)
    assert list(server.connection.streams) == [3]


def test_a_stream_with_a_large_response_without_a_window_times_out() -> None:
    server = ServerHarness(Limits(write_timeout_s=10, stream_window_bytes=100))
    server.feed(settings(window=0), server.headers(1, to("/test/Raw")))
    cancelled: list[int] = []
    server.calls[0].on_cancel = lambda: cancelled.append(1)
    server.calls[0].send(bytes(100))
    server.sent_frames()
    server.connection.end_unread_responses(1)
    server.connection.end_unread_responses(11)
    assert server.one(RST).number == Code.CANCEL
    assert cancelled == [1]
    assert not server.connection.streams


def test_unread_responses_are_charged_until_they_are_read_or_dropped() -> None:
    limits = BudgetLimits(total_bytes=1 << 30, client_bytes=1 << 30, connection_bytes=1 << 30)
    budget = ByteBudget(limits)
    server = ServerHarness(budget=budget)
    server.feed(settings(window=0), server.headers(1, to("/test/Raw")))
    server.feed(server.headers(3, to("/test/Raw")), server.headers(5, to("/test/Raw")))
    for call in server.calls:
        call.send(bytes(995))
    assert budget.unread_bytes == 3000
    server.feed(window(1, 600))
    server.sent_frames()
    assert budget.unread_bytes == 2400
    server.feed(window(1, 400), frame(RST, 0, 3, bytes(4)))
    server.sent_frames()
    assert budget.unread_bytes == 1000
    server.connection.connection_lost()
    assert budget.unread_bytes == budget.clients == 0


def test_clients_that_read_no_responses_may_not_send() -> None:
    """The connection's window is withheld; reading responses brings it back."""
    server = ServerHarness(Limits(connection_window_bytes=100_000, max_unsent_bytes=50_000))
    server.feed(settings(window=0))
    for stream in (1, 3):
        server.feed(server.request(stream, bytes(30_000)))
    server.sent_frames()
    upload = frame(DATA, 0, 5, message(bytes(50_000)))
    server.feed(server.headers(5, to("/test/Raw")), upload)
    assert server.sent_frames() == []
    server.feed(window(1, 40_000))
    frames = server.sent_frames()
    assert [each.stream for each in frames if each.kind == HEADERS] == [1]
    assert [each.number for each in frames if each.kind == WINDOW] == [50_005]
    server.feed(upload)
    assert server.one(WINDOW).number == 50_005


def test_reading_a_part_of_a_large_response_is_enough() -> None:
    server = ServerHarness(Limits(connection_window_bytes=100_000, max_unsent_bytes=20_000))
    server.feed(settings(window=0), server.request(1, bytes(60_000)))
    server.sent_frames()
    server.feed(server.headers(3, to("/test/Raw")), frame(DATA, 0, 3, message(bytes(52_000))))
    server.feed(window(1, 40_000))
    assert [each.number for each in server.sent_frames() if each.kind == WINDOW] == []
    server.feed(window(1, 5))
    assert [each.number for each in server.sent_frames() if each.kind == WINDOW] == [52_005]


def test_a_reset_brings_the_window_back_at_the_next_tick() -> None:
    server = ServerHarness(Limits(connection_window_bytes=100_000, max_unsent_bytes=20_000))
    server.feed(settings(window=0), server.request(1, bytes(60_000)))
    server.sent_frames()
    server.feed(server.headers(3, to("/test/Raw")), frame(DATA, 0, 3, message(bytes(52_000))))
    assert server.sent_frames() == []
    server.feed(frame(RST, 0, 1, bytes(4)))
    assert server.sent_frames() == []
    server.http2.on_timer(1)
    assert server.one(WINDOW).number == 52_005


def test_clients_that_exceed_the_withheld_window_are_cut_off() -> None:
    server = ServerHarness(Limits(connection_window_bytes=100_000, max_unsent_bytes=20_000))
    server.feed(settings(window=0), server.request(1, bytes(60_000)))
    server.sent_frames()
    server.feed(server.headers(3, to("/test/Raw")), frame(DATA, 0, 3, message(bytes(90_000))))
    assert server.sent_frames() == []
    server.feed(frame(DATA, 0, 3, message(bytes(20_000))))
    assert server.one(GOAWAY).code == Code.FLOW_CONTROL_ERROR
