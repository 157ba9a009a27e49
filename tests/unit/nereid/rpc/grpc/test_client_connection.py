"""The client's connection: what a server's frames come to."""

from __future__ import annotations

import struct
from typing import Any

import hpack
import pytest

from nereid.rpc.grpc.client_connection import ClientStream, outcome_of, request_block
from nereid.rpc.grpc.status import NotProcessedError, Status
from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    message,
    settings,
    window,
)
from tests.support.rpc.http2_peers import Ends

OPEN = [(":status", "200"), ("content-type", "application/grpc")]
ENDED = END_HEADERS | END_STREAM


def test_the_opening(ends: Ends) -> None:
    assert dict(struct.iter_unpack(">HI", ends.opening[0].payload))[2] == 0
    assert ends.opening[1].kind == WINDOW


def test_a_call(ends: Ends) -> None:
    stream = ends.start()
    stream.send(b"question")
    stream.half_close()
    stream.half_close()
    head, data, end = ends.take()
    assert head.fields == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/test/Echo",
        ":authority": "host",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "nereid-rpc",
        "grpc-accept-encoding": "identity,deflate,gzip",
        "a": "b",
        "grpc-timeout": "2000000u",
    }
    assert data.payload == message(b"question")
    assert (end.kind, end.flags, end.payload) == (DATA, END_STREAM, b"")
    ends.give(ends.headers(OPEN))
    assert ends.opens == 1
    ends.give(
        frame(DATA, 0, 1, message(b"answer")),
        ends.headers([("grpc-status", "0"), ("k", "v")], ENDED),
    )
    assert ends.messages == [b"answer"]
    assert ends.closes == [None]
    assert ends.take() == []
    assert not ends.connection.streams


def test_secure_requests_say_so() -> None:
    block = request_block("/a", "h", (), secure=True)
    fields: list[Any] = [tuple(pair) for pair in hpack.Decoder().decode(block)]
    assert (":scheme", "https") in fields


def test_a_stream_used_before_its_connection(ends: Ends) -> None:
    stream = ends.stream()
    stream.send(b"early")
    stream.pause()
    stream.resume()
    assert stream.buffered_bytes == 10
    stream.half_close()
    ends.connection.start(stream)
    assert stream.buffered_bytes == 0
    assert [each.kind for each in ends.take()] == [HEADERS, DATA, DATA]


def test_a_stream_cancelled_before_its_connection(ends: Ends) -> None:
    stream = ends.stream()
    left: list[ClientStream] = []
    stream.leave_queue = left.append
    stream.cancel()
    stream.cancel()
    assert left == [stream]
    other = ends.stream()
    other.cancel()
    assert ends.closes == []


def test_cancelling(ends: Ends) -> None:
    stream = ends.start()
    ends.take()
    stream.cancel()
    assert ends.one(RST).number == Code.CANCEL
    ends.give(ends.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"late")))
    assert ends.messages == []
    assert ends.closes == []
    assert ends.http2.error is None
    assert ends.slots >= 1


def test_trailers_only(ends: Ends) -> None:
    ends.start()
    ends.take()
    fields = [*OPEN, ("grpc-status", "5"), ("grpc-message", "no%20such"), ("k", "v")]
    ends.give(ends.headers(fields, ENDED))
    assert ends.error.status == Status.NOT_FOUND
    assert ends.error.message == "no such"
    assert ends.error.trailers == (("k", "v"),)
    # Our side was still open.
    assert ends.one(RST).number == Code.CANCEL


def test_informational_responses_are_passed_over(ends: Ends) -> None:
    ends.start()
    ends.give(ends.headers([(":status", "103")]), ends.headers(OPEN))
    assert ends.opens == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(":status", "503")], Status.UNAVAILABLE),
        ([(":status", "404"), ("content-type", "text/html")], Status.UNIMPLEMENTED),
        ([(":status", "200"), ("content-type", "text/html")], Status.UNKNOWN),
        ([(":status", "415"), ("grpc-status", "16")], Status.UNAUTHENTICATED),
        ([("content-type", "application/grpc")], Status.UNKNOWN),
        ([(":status", "x")], Status.UNKNOWN),
    ],
)
@pytest.mark.parametrize("flags", [END_HEADERS, ENDED])
def test_what_is_no_grpc_response(
    ends: Ends, fields: list[tuple[str, str]], status: Status, flags: int
) -> None:
    ends.start()
    ends.give(ends.headers(fields, flags))
    assert ends.error.status == status
    assert not ends.connection.streams


def test_missing_and_odd_trailers() -> None:
    ends = Ends()
    ends.start()
    ends.give(ends.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"x")))
    assert ends.error.status == Status.INTERNAL
    for fields, status in (
        ([(b"a", b"b")], Status.UNKNOWN),
        ([(b"grpc-status", b"99")], Status.UNKNOWN),
        ([(b"grpc-status", b"x"), (b"grpc-message", b"m")], Status.UNKNOWN),
        ([(b"grpc-message", b"m"), (b"grpc-status", b"10")], Status.ABORTED),
    ):
        assert outcome_of(fields).status == status
    assert outcome_of([(b"grpc-message", b"m"), (b"grpc-status", b"10")]).message == "m"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.CANCEL, Status.CANCELLED),
        (Code.ENHANCE_YOUR_CALM, Status.RESOURCE_EXHAUSTED),
        (Code.PROTOCOL_ERROR, Status.INTERNAL),
        (Code.REFUSED_STREAM, Status.UNAVAILABLE),
    ],
)
def test_resets(ends: Ends, code: Code, status: Status) -> None:
    ends.start()
    ends.give(frame(RST, 0, 1, struct.pack(">I", code)))
    assert ends.error.status == status
    assert isinstance(ends.error, NotProcessedError) == (code == Code.REFUSED_STREAM)


def test_goaway_tells_what_was_not_processed(ends: Ends) -> None:
    first, second = ends.start(), ends.start()
    ends.give(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0) + b"moving"))
    assert isinstance(ends.error, NotProcessedError)
    assert "moving" in ends.error.message
    assert second.done
    assert not first.done
    assert not ends.connection.usable


def test_the_connection_is_lost(ends: Ends) -> None:
    ends.start()
    ends.connection.connection_lost()
    assert ends.error.status == Status.UNAVAILABLE
    assert not ends.connection.usable


def test_the_servers_limit(ends: Ends) -> None:
    assert ends.connection.has_stream_slot
    ends.start()
    ends.give(settings(streams=1))
    assert not ends.connection.has_stream_slot
    ends.give(settings(streams=2))
    assert ends.connection.has_stream_slot


def test_bad_messages(ends: Ends) -> None:
    ends.start()
    ends.take()
    ends.give(frame(DATA, 0, 1, message(b"before HEADERS")))
    assert ends.error.status == Status.INTERNAL
    assert ends.one(RST).number == Code.CANCEL


def test_a_cut_off_message(ends: Ends) -> None:
    ends.start()
    ends.give(ends.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"cut")[:-1]))
    assert ends.error.status == Status.INTERNAL


def test_a_cut_off_message_before_an_error_is_the_error(ends: Ends) -> None:
    ends.start()
    ends.give(ends.headers(OPEN), frame(DATA, 0, 1, message(b"cut")[:-1]))
    ends.give(ends.headers([("grpc-status", "8")], ENDED))
    assert ends.error.status == Status.RESOURCE_EXHAUSTED


def test_an_owner_that_fails(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    stream = ends.start()

    def on_message(body: bytes) -> None:
        raise KeyError("mine")

    stream.on_message = on_message
    ends.give(ends.headers(OPEN), frame(DATA, 0, 1, message(b"x")))
    assert ends.error.status == Status.INTERNAL
    assert "mine" in caplog.text
    assert ends.http2.error is None


def test_stream_errors_of_the_server(ends: Ends) -> None:
    ends.start()
    ends.give(ends.headers(OPEN), ends.headers([("a", "b")]))
    assert ends.error.status == Status.INTERNAL
    ends.give(ends.headers(OPEN))
    assert ends.http2.error is None


def test_a_head_too_large() -> None:
    ends = Ends(Limits(trusts_peer=True, max_header_list_bytes=200))
    ends.start()
    ends.give(ends.headers([*OPEN, ("a", "x" * 200)]))
    assert ends.error.status == Status.INTERNAL


def test_encodings_of_the_response(ends: Ends) -> None:
    stream = ends.start()
    ends.give(ends.headers([*OPEN, ("grpc-encoding", "gzip")]))
    assert stream.encoding == "gzip"


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (frame(HEADERS, END_HEADERS, 7, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 2, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 9, b""), Code.PROTOCOL_ERROR),
        (frame(RST, 0, 2, bytes(4)), Code.PROTOCOL_ERROR),
        (settings(push=1), Code.PROTOCOL_ERROR),
    ],
)
def test_connection_errors(ends: Ends, attack: bytes, code: Code) -> None:
    ends.start()
    ends.give(attack)
    assert ends.http2.error is not None
    assert ends.http2.error.code == code


def test_a_server_is_trusted_with_pings(ends: Ends) -> None:
    ends.give(frame(PING, 0, 0, bytes(8)) * 5000)
    assert ends.http2.error is None


def test_padding_and_windows(ends: Ends) -> None:
    stream = ends.start()
    ends.give(ends.headers(OPEN))
    ends.take()
    stream.pause()
    body = message(bytes(200_000))
    for at in range(0, len(body), 50_000):
        ends.give(frame(DATA, PADDED, 1, b"\x03" + body[at : at + 50_000] + bytes(3)))
    for _ in range(2):
        ends.give(frame(DATA, 0, 1, message(bytes(250_000))))
    assert [each for each in ends.take() if each.kind == WINDOW] == []
    stream.resume()
    assert ends.one(WINDOW).stream == 1
    assert [len(each) for each in ends.messages] == [200_000, 250_000, 250_000]


def test_writable(ends: Ends) -> None:
    stream = ends.start()
    events: list[str] = []
    stream.notify_writable()
    stream.on_writable = lambda: events.append("writable")
    stream.send(bytes(200_000))
    ends.take()
    assert stream.buffered_bytes > 100_000
    ends.give(window(0, 1 << 20), window(1, 1 << 20))
    ends.take()
    # Below the mark, then nothing left.
    assert events == ["writable"] * 2
    stream.cancel()
    stream.send(b"x")
    stream.half_close()


def test_acks_of_settings(ends: Ends) -> None:
    ends.give(settings(frame=20_000), frame(SETTINGS, ACK))
    assert ends.one(SETTINGS).flags == ACK
