"""Answers that a client does not take: how long they wait, and what it may send meanwhile."""

from __future__ import annotations

from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
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
from tests.support.rpc.http2_peers import Side


def test_a_unary_response_that_gets_no_window_is_given_up() -> None:
    side = Side(Limits(write_timeout_s=10))
    side.give(settings(window=3), side.request(1), side.headers(3, to("/test/Raw")))
    side.calls[-1].send(b"more than three bytes")
    side.take()
    for now in (1, 9):
        side.connection.end_unread_responses(now)
    assert side.take() == []
    side.give(window(1, 1))
    assert side.one(DATA).payload == message(b"hi")[3:4]
    for now in (10, 19):
        side.connection.end_unread_responses(now)
    assert side.take() == []
    side.connection.end_unread_responses(20)
    reset = side.one(RST)
    # What waits in a stream is its owner's affair.
    assert (reset.stream, reset.number) == (1, Code.CANCEL)
    assert list(side.connection.streams) == [3]


def test_who_takes_no_responses_may_send_no_more() -> None:
    """The connection's window is kept back; taking answers brings it back."""
    side = Side(Limits(connection_window_bytes=100_000, max_unsent_bytes=50_000))
    side.give(settings(window=0))
    for stream in (1, 3):
        side.give(side.request(stream, bytes(30_000)))
    side.take()
    upload = frame(DATA, 0, 5, message(bytes(50_000)))
    side.give(side.headers(5, to("/test/Raw")), upload)
    assert side.take() == []
    side.give(window(1, 40_000))
    frames = side.take()
    assert [each.stream for each in frames if each.kind == HEADERS] == [1]
    assert [each.number for each in frames if each.kind == WINDOW] == [50_005]
    side.give(upload)
    assert side.one(WINDOW).number == 50_005


def test_taking_a_part_of_a_large_response_is_enough() -> None:
    side = Side(Limits(connection_window_bytes=100_000, max_unsent_bytes=20_000))
    side.give(settings(window=0), side.request(1, bytes(60_000)))
    side.take()
    side.give(side.headers(3, to("/test/Raw")), frame(DATA, 0, 3, message(bytes(52_000))))
    side.give(window(1, 40_000))
    assert [each.number for each in side.take() if each.kind == WINDOW] == []
    side.give(window(1, 5))
    assert [each.number for each in side.take() if each.kind == WINDOW] == [52_005]


def test_a_reset_brings_the_window_back_at_the_next_tick() -> None:
    side = Side(Limits(connection_window_bytes=100_000, max_unsent_bytes=20_000))
    side.give(settings(window=0), side.request(1, bytes(60_000)))
    side.take()
    side.give(side.headers(3, to("/test/Raw")), frame(DATA, 0, 3, message(bytes(52_000))))
    assert side.take() == []
    side.give(frame(RST, 0, 1, bytes(4)))
    assert side.take() == []
    side.http2.on_timer(1)
    assert side.one(WINDOW).number == 52_005


def test_who_keeps_sending_all_the_same_is_cut_off() -> None:
    side = Side(Limits(connection_window_bytes=100_000, max_unsent_bytes=20_000))
    side.give(settings(window=0), side.request(1, bytes(60_000)))
    side.take()
    side.give(side.headers(3, to("/test/Raw")), frame(DATA, 0, 3, message(bytes(90_000))))
    assert side.take() == []
    side.give(frame(DATA, 0, 3, message(bytes(20_000))))
    assert side.one(GOAWAY).code == Code.FLOW_CONTROL_ERROR
