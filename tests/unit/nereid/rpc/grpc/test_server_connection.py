"""The server's connection, frame by frame: what it answers, how calls end, and how it leaves."""

from __future__ import annotations

import gzip
import struct

import pytest

from nereid.rpc import RpcError, Status
from nereid.rpc.http2.frames import PREFACE, Code
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITISED,
    PRIORITY,
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
from tests.support.rpc.http2_peers import Side, response_of, statuses

# --- the good ways


def test_the_opening() -> None:
    side = Side(Limits(max_concurrent_streams=7, connection_window_bytes=100_000), greet=False)
    first, second = side.take()
    values = dict(struct.iter_unpack(">HI", first.payload))
    assert first.kind == SETTINGS
    assert values == {3: 7, 4: 1 << 20, 5: 1 << 18, 6: 16_384}
    assert (second.kind, second.number) == (WINDOW, 100_000 - 65_535)
    side.give(PREFACE[:5], PREFACE[5:] + settings(streams=5, list=9)[:3])
    assert not side.http2.control.settled
    side.give(settings(streams=5, list=9)[3:])
    assert side.http2.control.settled
    assert side.one(SETTINGS).flags == ACK
    side.give(frame(SETTINGS, ACK))
    assert side.take() == []


def test_a_request_is_responded_in_three_frames(side: Side) -> None:
    side.give(side.request(1, b"hello"))
    frames = side.take()
    assert [each.kind for each in frames] == [HEADERS, DATA, HEADERS]
    assert not side.connection.streams
    side.give(side.request(3, b"again"))
    assert response_of(side, 3) == b"again"


def test_a_request_byte_by_byte(side: Side) -> None:
    stream = side.request(1, b"hello") + side.request(3, b"")
    for at in range(len(stream)):
        side.give(stream[at : at + 1])
    frames = side.take()
    assert [each.payload[5:] for each in frames if each.kind == DATA] == [b"hello", b""]


def test_the_message_and_the_end_apart(side: Side) -> None:
    side.give(side.headers(1), frame(DATA, 0, 1, message(b"x")))
    assert side.take() == []
    side.give(frame(DATA, END_STREAM, 1))
    assert response_of(side) == b"x"


def test_a_message_in_several_frames(side: Side) -> None:
    body = bytes(range(256)) * 300
    data = message(body)
    side.give(side.headers(1))
    for at in range(0, len(data), 10_000):
        side.give(frame(DATA, 0, 1, data[at : at + 10_000]))
    side.give(window(0, 100_000), window(1, 100_000), frame(DATA, END_STREAM, 1))
    assert response_of(side) == body


def test_padding_priority_and_unknown_frames(side: Side) -> None:
    block = side.encoder.encode(REQUEST)
    side.give(
        frame(0x77, 0xFF, 9, b"whatever"),
        frame(PRIORITY, 0, 5, b"\x00\x00\x00\x00\x01"),
        frame(
            HEADERS,
            END_HEADERS | PADDED | PRIORITISED,
            1,
            b"\x03" + b"\x00\x00\x00\x03\x10" + block + bytes(3),
        ),
        frame(DATA, PADDED, 1, b"\x04" + message(b"pad") + bytes(4)),
        frame(DATA, PADDED | END_STREAM, 1, b"\x02" + bytes(2)),
    )
    assert response_of(side) == b"pad"


def test_a_block_in_pieces(side: Side) -> None:
    block = side.encoder.encode(REQUEST)
    side.give(
        frame(HEADERS, 0, 1, block[:5]),
        frame(CONTINUATION, 0, 1, block[5:9]),
        frame(CONTINUATION, END_HEADERS, 1, block[9:]),
        frame(DATA, END_STREAM, 1, message(b"x")),
    )
    assert response_of(side) == b"x"


def test_trailers_of_a_request(side: Side) -> None:
    side.give(
        side.headers(1),
        frame(DATA, 0, 1, message(b"x")),
        side.headers(1, [("checksum", "1")], END_HEADERS | END_STREAM),
    )
    assert response_of(side) == b"x"


def test_a_compressed_message(side: Side) -> None:
    fields = [*REQUEST, ("grpc-encoding", "gzip")]
    data = message(gzip.compress(b"squeezed"), 1)
    side.give(side.headers(1, fields), frame(DATA, END_STREAM, 1, data))
    assert response_of(side, 1) == b"squeezed"
    side.give(side.headers(3, fields))
    for at in range(len(data)):
        side.give(frame(DATA, 0, 3, data[at : at + 1]))
    side.give(frame(DATA, END_STREAM, 3))
    assert response_of(side, 3) == b"squeezed"


def test_pings_are_echoed(side: Side) -> None:
    side.give(frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b"87654321"))
    ping = side.one(PING)
    assert (ping.flags, ping.payload) == (ACK, b"12345678")


def test_a_stream_of_messages(side: Side) -> None:
    side.give(side.headers(1, to("/test/Chat")), frame(DATA, 0, 1, message(b"a") + message(b"b")))
    assert [each.payload[5:] for each in side.take() if each.kind == DATA] == [b"a", b"b"]
    side.give(frame(DATA, END_STREAM, 1))
    assert side.one(HEADERS).fields == {"grpc-status": "0"}
    assert not side.connection.streams


def test_a_stream_without_a_request(side: Side) -> None:
    side.give(side.headers(1, to("/test/Chat"), END_HEADERS | END_STREAM))
    trailers = side.one(HEADERS)
    assert trailers.fields["grpc-status"] == "0"
    assert trailers.fields[":status"] == "200"


def test_an_response_before_the_request_is_complete(side: Side) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    side.calls[0].finish(Status.ABORTED, "enough")
    frames = side.take()
    assert frames[0].fields["grpc-message"] == "enough"
    assert (frames[1].kind, frames[1].number) == (RST, Code.NO_ERROR)
    side.give(frame(DATA, 0, 1, message(b"late")), frame(DATA, END_STREAM, 1))
    assert side.take() == []
    assert side.events == []
    side.give(side.headers(1, [("late", "trailers")], END_HEADERS | END_STREAM))
    assert side.http2.error is None


def test_coroutines_are_handed_on(side: Side) -> None:
    side.give(side.request(1, b"x", "/test/Later"))
    assert side.events == [("/test/Later", b"x")]


# --- errors of calls


def test_handlers_that_fail(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    side.give(side.request(1, path="/test/Fail"))
    trailers = side.one(HEADERS).fields
    assert trailers["grpc-status"] == "13"
    assert trailers["grpc-message"] == "internal error"
    assert "secret" in caplog.text
    side.give(side.headers(3, to("/test/Raw")))

    def on_message(body: bytes) -> None:
        raise RpcError(Status.DATA_LOSS, "gone", [("k", "v")])

    side.calls[-1].on_message = on_message
    side.give(frame(DATA, 0, 3, message(b"x")))
    fields = next(each.fields for each in side.take() if each.kind == HEADERS)
    assert fields["grpc-status"] == "15"
    assert fields["k"] == "v"


def test_trailers_that_cannot_be_sent_do_not_keep_the_response(
    side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    side.give(side.request(1, path="/test/Hold"))
    side.calls[0].fail(Status.ABORTED, "x", [("Bad Key", "v")])
    assert statuses(side) == ["10"]
    assert "cannot be sent" in caplog.text


def test_wrong_numbers_of_messages(side: Side) -> None:
    side.give(side.headers(1, flags=END_HEADERS | END_STREAM))
    side.give(side.headers(3), frame(DATA, 0, 3, message(b"a") + message(b"b")))
    side.give(side.headers(5), frame(DATA, END_STREAM, 5))
    assert statuses(side) == ["12", "12", "12"]


def test_bad_messages(side: Side) -> None:
    side.give(side.headers(1), frame(DATA, END_STREAM, 1, message(b"cut off")[:-1]))
    side.give(side.headers(3), frame(DATA, END_STREAM, 3, message(b"flag", 2)))
    side.give(side.headers(5), frame(DATA, END_STREAM, 5, message(b"unannounced", 1)))
    assert statuses(side) == ["13", "13", "13"]
    assert not side.connection.streams


def test_messages_too_large() -> None:
    side = Side(Limits(max_message_bytes=10))
    side.give(side.headers(1), frame(DATA, 0, 1, message(bytes(11))[:5]))
    side.give(side.headers(3), frame(DATA, END_STREAM, 3, message(bytes(11))))
    assert statuses(side) == ["8", "8"]
    side.give(side.request(5, bytes(10)))
    assert response_of(side, 5) == bytes(10)


def test_refusals_by_http_status(side: Side) -> None:
    wrong = [("content-type", "text/plain") if k == "content-type" else (k, v) for k, v in REQUEST]
    side.give(side.headers(1, wrong, END_HEADERS | END_STREAM))
    fields = side.one(HEADERS).fields
    assert fields[":status"] == "415"
    assert fields["grpc-status"] == "2"
    side.give(side.headers(3, to("/test/None")))
    assert statuses(side) == ["12"]


def test_responses_after_the_response_are_silent(side: Side) -> None:
    side.give(side.request(1, path="/test/Hold"))
    call = side.calls[0]
    call.reply(b"x")
    side.take()
    call.reply(b"y")
    call.send(b"z")
    call.accept()
    call.finish()
    call.fail(Status.ABORTED, "")
    assert call.done
    assert side.take() == []


# --- deadlines and cancellation


def test_a_deadline_responses_and_cancels(side: Side) -> None:
    side.give(
        side.headers(1, to("/test/Hold", ("grpc-timeout", "2S"))),
        frame(DATA, END_STREAM, 1, message(b"")),
    )
    call = side.calls[0]
    assert call.deadline == 1002.0
    assert side.timers == [pytest.approx(1002.01)]
    for each in side.deadlines.expire(1003):
        each.expire()
        each.expire()
    assert side.events == ["cancelled"]
    assert statuses(side) == ["4"]


def test_an_response_in_time_leaves_no_deadline(side: Side) -> None:
    for stream, path in ((1, "/test/Echo"), (3, "/test/Fail")):
        side.give(
            side.headers(stream, to(path, ("grpc-timeout", "2S"))),
            frame(DATA, END_STREAM, stream, message(b"")),
        )
    assert side.deadlines.expire(1e9) == []


def test_the_peer_resets(side: Side) -> None:
    side.give(side.request(1, path="/test/Hold"), frame(RST, 0, 1, bytes(4)))
    assert side.events == ["cancelled"]
    assert side.calls[0].done
    side.give(frame(RST, 0, 1, bytes(4)))
    assert side.events == ["cancelled"]


def test_the_connection_is_lost(side: Side) -> None:
    side.give(side.request(1, path="/test/Hold"), side.headers(3, to("/test/Raw")))
    side.connection.connection_lost()
    assert side.events == ["cancelled", "cancelled"]
    assert side.take() == []
    side.give(side.request(5))
    assert side.take() == []


def test_a_failing_on_cancel_harms_nobody(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    side.give(side.request(1, path="/test/Hold"))

    def on_cancel() -> None:
        raise ValueError("oops")

    side.calls[0].on_cancel = on_cancel
    side.give(frame(RST, 0, 1, bytes(4)), side.request(3))
    assert response_of(side, 3) == b"hi"
    assert "oops" in caplog.text


# --- leaving


def test_drain_in_two_steps(side: Side) -> None:
    side.give(side.request(1, path="/test/Hold"))
    side.http2.control.start_drain()
    side.http2.control.start_drain()
    goaway, ping = side.take()
    assert int.from_bytes(goaway.payload[:4]) == (1 << 31) - 1
    side.give(side.request(3))
    assert response_of(side, 3) == b"hi"
    side.give(frame(PING, ACK, 0, ping.payload))
    last = side.one(GOAWAY)
    assert int.from_bytes(last.payload[:4]) == 3
    side.give(side.request(5))
    assert side.one(RST).number == Code.REFUSED_STREAM
    side.http2.control.finish_drain()
    side.calls[0].reply(b"done")
    assert response_of(side, 1) == b"done"


def test_a_client_that_leaves(side: Side) -> None:
    side.give(frame(GOAWAY, 0, 0, bytes(8) + b"bye"), side.request(1))
    assert response_of(side) == b"hi"


def test_streams_beyond_the_limit() -> None:
    side = Side(Limits(max_concurrent_streams=1))
    side.give(side.request(1, path="/test/Hold"), side.request(3))
    assert side.one(RST).number == Code.REFUSED_STREAM
    side.calls[0].reply(b"x")
    side.take()
    side.give(side.request(5))
    assert response_of(side, 5) == b"hi"
