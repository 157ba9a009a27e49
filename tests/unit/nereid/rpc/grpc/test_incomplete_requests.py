"""Unary requests that are never completed: how long the server waits for them."""

from __future__ import annotations

import gzip

from nereid.rpc.grpc.status import Status
from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
from nereid.rpc.net.limits.stall_detection import UploadLimits
from tests.support.rpc.connection_harness import ServerHarness
from tests.support.rpc.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    REQUEST,
    RST,
    Frame,
    frame,
    message,
    settings,
    to,
)

LIMIT = Limits(read_timeout_s=10)
PIECE = frame(DATA, 0, 1, message(bytes(100))[:50])


def looked(server: ServerHarness, *times: float) -> list[Frame]:
    """What it sends when it is checked at these times."""
    for now in times:
        server.connection.end_incomplete_requests(now)
    return server.sent_frames()


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
    server = ServerHarness(LIMIT)
    server.feed(settings(), server.headers(1), PIECE)
    server.sent_frames()
    assert looked(server, 100, 109.9) == []
    assert refused(looked(server, 110), 1)
    assert not server.connection.streams
    assert looked(server, 130) == []
    server.feed(server.request(3))
    assert [each.stream for each in server.sent_frames() if each.kind == DATA] == [3]


def test_the_rest_of_a_frame_that_was_given_up_is_passed_over() -> None:
    server = ServerHarness(LIMIT)
    cut = frame(DATA, END_STREAM, 1, message(bytes(100)))
    server.feed(settings(), server.headers(1), cut[:60])
    server.sent_frames()
    (stream,) = server.connection.streams.values()
    assert refused(looked(server, 100, 110), 1)
    assert stream.partial_message is None
    server.feed(cut[60:], server.request(3))
    assert [each.stream for each in server.sent_frames() if each.kind == DATA] == [3]


def test_headers_alone_and_a_whole_message_are_no_request() -> None:
    server = ServerHarness(LIMIT)
    server.feed(settings(), server.headers(1))
    server.sent_frames()
    assert looked(server, 100, 105) == []
    server.feed(frame(DATA, 0, 1, message(b"hi")))
    assert looked(server, 110, 119) == []
    assert refused(looked(server, 120), 1)


def test_a_body_that_goes_on_slowly_is_waited_for() -> None:
    server = ServerHarness(LIMIT)
    # One frame, which counts for windows at once, in bytes that come one by one.
    body = message(bytes(20))
    whole = frame(DATA, END_STREAM, 1, body)
    server.feed(settings(), server.headers(1), whole[:10])
    server.sent_frames()
    for number, byte in enumerate(whole[10:]):
        assert looked(server, 9 * number) == []
        server.feed(bytes((byte,)))
    assert [each.payload for each in server.sent_frames() if each.kind == DATA] == [body]


def test_complete_requests_and_streams_have_no_read_timeout() -> None:
    server = ServerHarness(LIMIT)
    server.feed(settings(), server.headers(1, to("/test/Hold"), END_HEADERS))
    server.feed(frame(DATA, END_STREAM, 1, message(b"hi")), server.headers(3, to("/test/Raw")))
    server.sent_frames()
    assert looked(server, 0, 100, 200) == []
    assert list(server.connection.streams) == [1, 3]


def test_requests_are_not_timed_out_while_the_client_may_not_send() -> None:
    """The connection's window is withheld until responses are read."""
    server = ServerHarness(
        Limits(read_timeout_s=10, connection_window_bytes=100_000, max_unsent_bytes=20_000)
    )
    server.feed(settings(window=0), server.request(1, bytes(60_000)), server.headers(3))
    server.sent_frames()
    server.feed(frame(DATA, 0, 3, message(bytes(90_000))[:52_000]))
    assert looked(server, 0, 100) == []
    server.feed(frame(RST, 0, 1, bytes(4)))
    server.http2.on_timer(100)
    server.sent_frames()
    assert looked(server, 109, 118) == []
    assert refused(looked(server, 119), 3)


# --- rate and total time

RATED = Limits(
    read_timeout_s=10, upload=UploadLimits(min_bytes_per_s=100, window_s=10, total_s=100)
)


def test_what_arrives_too_slowly_is_given_up() -> None:
    server = ServerHarness(RATED)
    body = message(bytes(10_000))
    server.feed(settings(), server.headers(1), server.headers(3, to("/test/Raw")))
    for second in range(11):
        # Progress enough for each, but together below the rate.
        for stream in (1, 3):
            server.feed(frame(DATA, 0, stream, body[second * 40 : second * 40 + 40]))
        server.connection.end_incomplete_requests(second)
    frames = [each for each in server.sent_frames() if each.kind == HEADERS]
    assert {each.stream for each in frames} == {1, 3}
    assert not server.connection.streams


def test_the_rate_is_the_connections() -> None:
    server = ServerHarness(RATED)
    body = message(bytes(10_000))
    server.feed(settings(), *(server.headers(stream) for stream in range(1, 10, 2)))
    server.sent_frames()
    for second in range(50):
        for stream in range(1, 10, 2):
            server.feed(frame(DATA, 0, stream, body[second * 30 : second * 30 + 30]))
        assert looked(server, second) == []


def test_no_request_may_take_for_ever() -> None:
    server = ServerHarness(RATED)
    body = message(bytes(100_000))
    server.feed(settings(), server.headers(1), server.headers(3, to("/test/Raw")))
    server.sent_frames()
    for second in range(100):
        for stream in (1, 3):
            server.feed(frame(DATA, 0, stream, body[second * 200 : second * 200 + 200]))
        assert looked(server, 1000 + second) == []
    frames = [each for each in looked(server, 1100) if each.kind == HEADERS]
    assert {each.stream for each in frames} == {1, 3}


def test_a_stream_may_be_silent_between_messages_and_while_it_is_paused() -> None:
    server = ServerHarness(RATED)
    server.feed(settings(), server.headers(1, to("/test/Raw")))
    server.feed(frame(DATA, 0, 1, message(bytes(100))))
    server.sent_frames()
    assert looked(server, *range(0, 300, 5)) == []
    server.calls[0].pause()
    server.feed(frame(DATA, 0, 1, message(bytes(100))[:50]))
    assert looked(server, *range(300, 600, 5)) == []
    server.calls[0].resume()
    assert looked(server, 600, 605) == []
    assert refused(looked(server, 610), 1)


def test_many_messages_in_turn_have_no_total_time() -> None:
    server = ServerHarness(RATED)
    server.feed(settings(), server.headers(1, to("/test/Raw")))
    server.sent_frames()
    half = message(bytes(1000))[:500], message(bytes(1000))[500:]
    server.feed(frame(DATA, 0, 1, half[0]))
    for second in range(300):
        server.feed(frame(DATA, 0, 1, half[1] + half[0]))
        assert looked(server, second) == []


def test_messages_that_are_being_inflated_have_arrived() -> None:
    server = ServerHarness(RATED, defer_inflation=True)
    packed = message(gzip.compress(bytes(100_000)), 1)
    server.feed(settings(), server.headers(1, [*REQUEST, ("grpc-encoding", "gzip")]))
    server.feed(frame(DATA, 0, 1, packed))
    server.sent_frames()
    assert looked(server, 0, 50, 200) == []
    assert len(server.inflations) == 1
