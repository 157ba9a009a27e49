"""The server's connection, frame by frame: its responses, how calls end, and how it drains."""

from __future__ import annotations

import gzip
import struct

import pytest

from nereid.rpc import RpcError, Status
from nereid.rpc.http2.frames import PREFACE, Code
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.connection_harness import ServerHarness, response_of, statuses
from tests.support.rpc.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    REQUEST,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    message,
    settings,
    to,
    window,
)

# --- the good ways


def test_the_opening() -> None:
    server = ServerHarness(
        Limits(max_concurrent_streams=7, connection_window_bytes=100_000), greet=False
    )
    first, second = server.sent_frames()
    values = dict(struct.iter_unpack(">HI", first.payload))
    assert first.kind == SETTINGS
    assert values == {3: 7, 4: 1 << 20, 5: 1 << 18, 6: 16_384}
    assert (second.kind, second.number) == (WINDOW, 100_000 - 65_535)
    server.feed(PREFACE[:5], PREFACE[5:] + settings(streams=5, list=9)[:3])
    assert not server.http2.control.settled
    server.feed(settings(streams=5, list=9)[3:])
    assert server.http2.control.settled
    assert server.one(SETTINGS).flags == ACK
    server.feed(frame(SETTINGS, ACK))
    assert server.sent_frames() == []


def test_a_request_is_responded_in_three_frames(server: ServerHarness) -> None:
    server.feed(server.request(1, b"hello"))
    frames = server.sent_frames()
    assert [each.kind for each in frames] == [HEADERS, DATA, HEADERS]
    assert not server.connection.streams
    server.feed(server.request(3, b"again"))
    assert response_of(server, 3) == b"again"


def test_a_request_byte_by_byte(server: ServerHarness) -> None:
    stream = server.request(1, b"hello") + server.request(3, b"")
    for at in range(len(stream)):
        server.feed(stream[at : at + 1])
    frames = server.sent_frames()
    assert [each.payload[5:] for each in frames if each.kind == DATA] == [b"hello", b""]


def test_the_message_and_the_end_apart(server: ServerHarness) -> None:
    server.feed(server.headers(1), frame(DATA, 0, 1, message(b"x")))
    assert server.sent_frames() == []
    server.feed(frame(DATA, END_STREAM, 1))
    assert response_of(server) == b"x"


def test_a_message_in_several_frames(server: ServerHarness) -> None:
    body = bytes(range(256)) * 300
    data = message(body)
    server.feed(server.headers(1))
    for at in range(0, len(data), 10_000):
        server.feed(frame(DATA, 0, 1, data[at : at + 10_000]))
    server.feed(window(0, 100_000), window(1, 100_000), frame(DATA, END_STREAM, 1))
    assert response_of(server) == body


def test_a_compressed_message(server: ServerHarness) -> None:
    fields = [*REQUEST, ("grpc-encoding", "gzip")]
    data = message(gzip.compress(b"squeezed"), 1)
    server.feed(server.headers(1, fields), frame(DATA, END_STREAM, 1, data))
    assert response_of(server, 1) == b"squeezed"
    server.feed(server.headers(3, fields))
    for at in range(len(data)):
        server.feed(frame(DATA, 0, 3, data[at : at + 1]))
    server.feed(frame(DATA, END_STREAM, 3))
    assert response_of(server, 3) == b"squeezed"


def test_pings_are_echoed(server: ServerHarness) -> None:
    server.feed(frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b"87654321"))
    ping = server.one(PING)
    assert (ping.flags, ping.payload) == (ACK, b"12345678")


def test_a_stream_of_messages(server: ServerHarness) -> None:
    server.feed(
        server.headers(1, to("/test/Chat")), frame(DATA, 0, 1, message(b"a") + message(b"b"))
    )
    assert [each.payload[5:] for each in server.sent_frames() if each.kind == DATA] == [b"a", b"b"]
    server.feed(frame(DATA, END_STREAM, 1))
    assert server.one(HEADERS).fields == {"grpc-status": "0"}
    assert not server.connection.streams


def test_a_stream_without_a_request(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Chat"), END_HEADERS | END_STREAM))
    trailers = server.one(HEADERS)
    assert trailers.fields["grpc-status"] == "0"
    assert trailers.fields[":status"] == "200"


def test_a_response_before_the_request_is_complete(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.calls[0].finish(Status.ABORTED, "enough")
    frames = server.sent_frames()
    assert frames[0].fields["grpc-message"] == "enough"
    assert (frames[1].kind, frames[1].number) == (RST, Code.NO_ERROR)
    server.feed(frame(DATA, 0, 1, message(b"late")), frame(DATA, END_STREAM, 1))
    assert server.sent_frames() == []
    assert server.events == []
    server.feed(server.headers(1, [("late", "trailers")], END_HEADERS | END_STREAM))
    assert server.http2.error is None


def test_coroutines_are_handed_on(server: ServerHarness) -> None:
    server.feed(server.request(1, b"x", "/test/Later"))
    assert server.events == [("/test/Later", b"x")]


# --- errors of calls


def test_handlers_that_fail(server: ServerHarness, caplog: pytest.LogCaptureFixture) -> None:
    server.feed(server.request(1, path="/test/Fail"))
    trailers = server.one(HEADERS).fields
    assert trailers["grpc-status"] == "13"
    assert trailers["grpc-message"] == "internal error"
    assert "secret" in caplog.text
    server.feed(server.headers(3, to("/test/Raw")))

    def on_message(body: bytes) -> None:
        raise RpcError(Status.DATA_LOSS, "gone", [("k", "v")])

    server.calls[-1].on_message = on_message
    server.feed(frame(DATA, 0, 3, message(b"x")))
    fields = next(each.fields for each in server.sent_frames() if each.kind == HEADERS)
    assert fields["grpc-status"] == "15"
    assert fields["k"] == "v"


def test_trailers_that_cannot_be_sent_do_not_keep_the_response(
    server: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    server.feed(server.request(1, path="/test/Hold"))
    server.calls[0].fail(Status.ABORTED, "x", [("Bad Key", "v")])
    assert statuses(server) == ["10"]
    assert "cannot be sent" in caplog.text


def test_wrong_numbers_of_messages(server: ServerHarness) -> None:
    server.feed(server.headers(1, flags=END_HEADERS | END_STREAM))
    server.feed(server.headers(3), frame(DATA, 0, 3, message(b"a") + message(b"b")))
    server.feed(server.headers(5), frame(DATA, END_STREAM, 5))
    assert statuses(server) == ["12", "12", "12"]


def test_bad_messages(server: ServerHarness) -> None:
    server.feed(server.headers(1), frame(DATA, END_STREAM, 1, message(b"cut off")[:-1]))
    server.feed(server.headers(3), frame(DATA, END_STREAM, 3, message(b"flag", 2)))
    server.feed(server.headers(5), frame(DATA, END_STREAM, 5, message(b"unannounced", 1)))
    assert statuses(server) == ["13", "13", "13"]
    assert not server.connection.streams


def test_messages_too_large() -> None:
    server = ServerHarness(Limits(max_message_bytes=10))
    server.feed(server.headers(1), frame(DATA, 0, 1, message(bytes(11))[:5]))
    server.feed(server.headers(3), frame(DATA, END_STREAM, 3, message(bytes(11))))
    assert statuses(server) == ["8", "8"]
    server.feed(server.request(5, bytes(10)))
    assert response_of(server, 5) == bytes(10)


def test_refusals_by_http_status(server: ServerHarness) -> None:
    wrong = [("content-type", "text/plain") if k == "content-type" else (k, v) for k, v in REQUEST]
    server.feed(server.headers(1, wrong, END_HEADERS | END_STREAM))
    fields = server.one(HEADERS).fields
    assert fields[":status"] == "415"
    assert fields["grpc-status"] == "2"
    server.feed(server.headers(3, to("/test/None")))
    assert statuses(server) == ["12"]


def test_replies_after_the_response_are_ignored(server: ServerHarness) -> None:
    server.feed(server.request(1, path="/test/Hold"))
    call = server.calls[0]
    call.reply(b"x")
    server.sent_frames()
    call.reply(b"y")
    call.send(b"z")
    call.accept()
    call.finish()
    call.fail(Status.ABORTED, "")
    assert call.done
    assert server.sent_frames() == []


# --- deadlines and cancellation


def test_a_passed_deadline_ends_and_cancels_the_call(server: ServerHarness) -> None:
    server.feed(
        server.headers(1, to("/test/Hold", ("grpc-timeout", "2S"))),
        frame(DATA, END_STREAM, 1, message(b"")),
    )
    call = server.calls[0]
    assert call.deadline == 1002.0
    assert server.timers == [pytest.approx(1002.01)]
    for each in server.deadlines.expire(1003):
        each.expire()
        each.expire()
    assert server.events == ["cancelled"]
    assert statuses(server) == ["4"]


def test_a_response_in_time_leaves_no_deadline(server: ServerHarness) -> None:
    for stream, path in ((1, "/test/Echo"), (3, "/test/Fail")):
        server.feed(
            server.headers(stream, to(path, ("grpc-timeout", "2S"))),
            frame(DATA, END_STREAM, stream, message(b"")),
        )
    assert server.deadlines.expire(1e9) == []


def test_the_peer_resets(server: ServerHarness) -> None:
    server.feed(server.request(1, path="/test/Hold"), frame(RST, 0, 1, bytes(4)))
    assert server.events == ["cancelled"]
    assert server.calls[0].done
    server.feed(frame(RST, 0, 1, bytes(4)))
    assert server.events == ["cancelled"]


def test_the_connection_is_lost(server: ServerHarness) -> None:
    server.feed(server.request(1, path="/test/Hold"), server.headers(3, to("/test/Raw")))
    server.connection.connection_lost()
    assert server.events == ["cancelled", "cancelled"]
    assert server.sent_frames() == []
    server.feed(server.request(5))
    assert server.sent_frames() == []


def test_a_failing_on_cancel_does_not_harm_the_connection(
    server: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    server.feed(server.request(1, path="/test/Hold"))

    def on_cancel() -> None:
        raise ValueError("oops")

    server.calls[0].on_cancel = on_cancel
    server.feed(frame(RST, 0, 1, bytes(4)), server.request(3))
    assert response_of(server, 3) == b"hi"
    assert "oops" in caplog.text


# --- leaving


def test_drain_in_two_steps(server: ServerHarness) -> None:
    server.feed(server.request(1, path="/test/Hold"))
    server.http2.control.start_drain()
    server.http2.control.start_drain()
    goaway, ping = server.sent_frames()
    assert int.from_bytes(goaway.payload[:4]) == (1 << 31) - 1
    server.feed(server.request(3))
    assert response_of(server, 3) == b"hi"
    server.feed(frame(PING, ACK, 0, ping.payload))
    last = server.one(GOAWAY)
    assert int.from_bytes(last.payload[:4]) == 3
    # What the client sent before it knew, and what it sends of that stream then, is no error.
    update = frame(WINDOW, 0, 5, (9).to_bytes(4))
    server.feed(server.request(5), update, frame(RST, 0, 5, bytes(4)))
    refused = server.sent_frames()
    assert [(each.kind, each.stream) for each in refused] == [(RST, 5)]
    assert refused[0].number == Code.REFUSED_STREAM
    assert server.http2.control.error is None
    server.http2.control.finish_drain()
    server.calls[0].reply(b"done")
    assert response_of(server, 1) == b"done"
    server.feed(frame(WINDOW, 0, 7, (9).to_bytes(4)))
    assert "idle stream" in str(server.http2.control.error)


def test_streams_beyond_the_limit() -> None:
    server = ServerHarness(Limits(max_concurrent_streams=1))
    server.feed(server.request(1, path="/test/Hold"), server.request(3))
    assert server.one(RST).number == Code.REFUSED_STREAM
    server.calls[0].reply(b"x")
    server.sent_frames()
    server.feed(server.request(5))
    assert response_of(server, 5) == b"hi"
