"""Unary requests that do not become whole: how long they are waited for."""

from __future__ import annotations

from nereid.rpc.grpc.status import Status
from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST,
    Frame,
    frame,
    message,
    settings,
    to,
)
from tests.support.rpc.http2_peers import Side

LIMIT = Limits(read_timeout_s=10)
PIECE = frame(DATA, 0, 1, message(bytes(100))[:50])


def looked(side: Side, *times: float) -> list[Frame]:
    """What it says when it is looked at, at these times."""
    for now in times:
        side.connection.end_incomplete_requests(now)
    return side.take()


def refused(frames: list[Frame], stream: int) -> bool:
    """Whether the request got its trailers, and the stream its end."""
    responses = [each for each in frames if each.kind == HEADERS]
    resets = [each for each in frames if each.kind == RST]
    assert [each.stream for each in responses] == [each.stream for each in resets]
    if not responses:
        return False
    assert [each.stream for each in responses] == [stream]
    assert responses[0].fields["grpc-status"] == str(int(Status.DEADLINE_EXCEEDED))
    assert resets[0].number == Code.NO_ERROR
    return True


def test_a_body_that_does_not_go_on_is_given_up() -> None:
    side = Side(LIMIT)
    side.give(settings(), side.headers(1), PIECE)
    side.take()
    assert looked(side, 100, 109.9) == []
    assert refused(looked(side, 110), 1)
    assert not side.connection.streams
    assert looked(side, 130) == []
    side.give(side.request(3))
    assert [each.stream for each in side.take() if each.kind == DATA] == [3]


def test_the_rest_of_a_frame_that_was_given_up_is_passed_over() -> None:
    side = Side(LIMIT)
    cut = frame(DATA, END_STREAM, 1, message(bytes(100)))
    side.give(settings(), side.headers(1), cut[:60])
    side.take()
    (stream,) = side.connection.streams.values()
    assert refused(looked(side, 100, 110), 1)
    assert stream.partial_message is None
    side.give(cut[60:], side.request(3))
    assert [each.stream for each in side.take() if each.kind == DATA] == [3]


def test_headers_alone_and_a_whole_message_are_no_request() -> None:
    side = Side(LIMIT)
    side.give(settings(), side.headers(1))
    side.take()
    assert looked(side, 100, 105) == []
    side.give(frame(DATA, 0, 1, message(b"hi")))
    assert looked(side, 110, 119) == []
    assert refused(looked(side, 120), 1)


def test_a_body_that_goes_on_slowly_is_waited_for() -> None:
    side = Side(LIMIT)
    # One frame, which counts for windows at once, in bytes that come one by one.
    body = message(bytes(20))
    whole = frame(DATA, END_STREAM, 1, body)
    side.give(settings(), side.headers(1), whole[:10])
    side.take()
    for number, byte in enumerate(whole[10:]):
        assert looked(side, 9 * number) == []
        side.give(bytes((byte,)))
    assert [each.payload for each in side.take() if each.kind == DATA] == [body]


def test_what_is_whole_or_a_stream_may_take_its_time() -> None:
    side = Side(LIMIT)
    side.give(settings(), side.headers(1, to("/test/Hold"), END_HEADERS))
    side.give(frame(DATA, END_STREAM, 1, message(b"hi")), side.headers(3, to("/test/Raw")))
    side.take()
    assert looked(side, 0, 100, 200) == []
    assert list(side.connection.streams) == [1, 3]


def test_who_may_not_send_is_not_waited_for() -> None:
    """The connection's window is kept back until answers are taken."""
    side = Side(Limits(read_timeout_s=10, connection_window_bytes=100_000, max_unsent_bytes=20_000))
    side.give(settings(window=0), side.request(1, bytes(60_000)), side.headers(3))
    side.take()
    side.give(frame(DATA, 0, 3, message(bytes(90_000))[:52_000]))
    assert looked(side, 0, 100) == []
    side.give(frame(RST, 0, 1, bytes(4)))
    side.http2.on_timer(100)
    side.take()
    assert looked(side, 109, 118) == []
    assert refused(looked(side, 119), 3)
