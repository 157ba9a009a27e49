"""Frames that are wrong: what ends a stream, and what ends the server's whole connection."""

from __future__ import annotations

import struct

import pytest

from nereid.rpc.http2.frames import PREFACE, Code
from tests.support.rpc.connection_harness import (
    ServerHarness,
    connection_error,
    response_of,
    statuses,
)
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
    PUSH,
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

# --- errors of streams


def reset_of(server: ServerHarness) -> Code:
    reset = server.one(RST)
    assert server.http2.error is None
    server.feed(server.request(99))
    assert response_of(server, 99) == b"hi"
    return Code(reset.number)


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (window(1, 0), Code.PROTOCOL_ERROR),
        (window(1, (1 << 31) - 1), Code.FLOW_CONTROL_ERROR),
        (frame(PRIORITY, 0, 1, b"1234"), Code.FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 1, b"\x00\x00\x00\x01\x01"), Code.PROTOCOL_ERROR),
    ],
)
def test_stream_errors(server: ServerHarness, attack: bytes, code: Code) -> None:
    server.feed(server.request(1, path="/test/Hold"), attack)
    assert reset_of(server) == code
    assert server.events == ["cancelled"]


def test_malformed_heads_and_trailers(server: ServerHarness) -> None:
    server.feed(server.headers(1, REQUEST[1:]))
    assert reset_of(server) == Code.PROTOCOL_ERROR
    server = ServerHarness()
    server.feed(server.headers(1), server.headers(1, [("a", "b")]))
    assert reset_of(server) == Code.PROTOCOL_ERROR
    server = ServerHarness()
    server.feed(
        server.request(1, path="/test/Hold"),
        server.headers(1, [("a", "b")], END_HEADERS | END_STREAM),
    )
    assert reset_of(server) == Code.STREAM_CLOSED


def test_content_length(server: ServerHarness) -> None:
    fields = [*REQUEST, ("content-length", "8")]
    server.feed(server.headers(1, fields), frame(DATA, END_STREAM, 1, message(b"123")))
    assert response_of(server) == b"123"
    server.feed(server.headers(3, fields), frame(DATA, END_STREAM, 3, message(b"1234")))
    assert server.one(RST).number == Code.PROTOCOL_ERROR
    server.feed(server.headers(5, fields, END_HEADERS | END_STREAM))
    assert reset_of(server) == Code.PROTOCOL_ERROR


def test_data_on_closed_streams(server: ServerHarness) -> None:
    server.feed(server.request(1), frame(DATA, 0, 1, b"more"))
    assert response_of_and_reset(server) == Code.STREAM_CLOSED
    server.feed(server.request(3, path="/test/Hold"), frame(DATA, 0, 3, b"more"))
    assert reset_of(server) == Code.STREAM_CLOSED


def response_of_and_reset(server: ServerHarness) -> Code:
    return Code(next(each.number for each in server.sent_frames() if each.kind == RST))


def test_data_goes_on_after_a_reset_in_the_middle_of_a_frame(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    data = frame(DATA, END_STREAM, 1, message(b"a") + message(bytes(100)))
    server.calls[0].on_message = lambda _: server.calls[0].finish()
    server.feed(data[:20], data[20:60], data[60:], server.request(3))
    assert [each.payload[5:] for each in server.sent_frames() if each.kind == DATA] == [b"hi"]


def test_messages_after_the_handler_finished_are_dropped(server: ServerHarness) -> None:
    """The response waits for a window; what the client still sends is ignored."""
    server.feed(settings(window=0), server.headers(1, to("/test/Raw")))
    server.calls[0].send(b"x")
    server.calls[0].finish()
    server.feed(frame(DATA, 0, 1, message(b"ignored")), frame(DATA, END_STREAM, 1))
    assert server.events == []
    server.feed(window(1, 100))
    assert statuses(server) == ["0"]
    assert not server.connection.streams


def test_window_updates_for_closed_streams_are_no_error(server: ServerHarness) -> None:
    server.feed(server.request(1), window(1, 5), frame(RST, 0, 1, bytes(4)), server.request(3))
    assert server.http2.error is None


# --- errors of connections

REQUEST_BLOCK = b"\x83\x86\x84"
CONNECTION_ERRORS: dict[str, tuple[bytes, Code]] = {
    "oversized frame": (struct.pack(">I", (1 << 18) + 1)[1:] + bytes(6), Code.FRAME_SIZE_ERROR),
    "large control frame": (frame(PING, payload=bytes(20_000)), Code.ENHANCE_YOUR_CALM),
    "large header frame": (frame(HEADERS, 0, 1, bytes(40_000))[:9], Code.ENHANCE_YOUR_CALM),
    "ping on a stream": (frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "ping of 7": (frame(PING, payload=bytes(7)), Code.FRAME_SIZE_ERROR),
    "settings on a stream": (frame(SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
    "settings of 5": (frame(SETTINGS, payload=bytes(5)), Code.FRAME_SIZE_ERROR),
    "settings ack of 6": (frame(SETTINGS, ACK, payload=bytes(6)), Code.FRAME_SIZE_ERROR),
    "push setting": (settings(push=2), Code.PROTOCOL_ERROR),
    "window setting": (settings(window=1 << 31), Code.FLOW_CONTROL_ERROR),
    "small frame setting": (settings(frame=16_383), Code.PROTOCOL_ERROR),
    "large frame setting": (settings(frame=1 << 24), Code.PROTOCOL_ERROR),
    "goaway on a stream": (frame(GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "goaway of 7": (frame(GOAWAY, payload=bytes(7)), Code.FRAME_SIZE_ERROR),
    "push promise": (frame(PUSH, END_HEADERS, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "window of 3": (frame(WINDOW, payload=bytes(3)), Code.FRAME_SIZE_ERROR),
    "window of zero": (window(0, 0), Code.PROTOCOL_ERROR),
    "window overflow": (window(0, (1 << 31) - 1), Code.FLOW_CONTROL_ERROR),
    "window on idle": (window(7, 1), Code.PROTOCOL_ERROR),
    "reset of 3": (frame(RST, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
    "reset on 0": (frame(RST, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
    "reset on idle": (frame(RST, 0, 7, bytes(4)), Code.PROTOCOL_ERROR),
    "priority on 0": (frame(PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
    "data on 0": (frame(DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "data on idle": (frame(DATA, 0, 7, b"x"), Code.PROTOCOL_ERROR),
    "data padding": (frame(DATA, PADDED, 1, b"\x05abcd"), Code.PROTOCOL_ERROR),
    "data padding of none": (frame(DATA, PADDED, 1), Code.PROTOCOL_ERROR),
    "headers padding": (frame(HEADERS, PADDED | 4, 1, b"\x09abcd"), Code.PROTOCOL_ERROR),
    "headers padding of none": (frame(HEADERS, PADDED | 4, 1), Code.PROTOCOL_ERROR),
    "headers priority": (frame(HEADERS, PRIORITISED | 4, 1, b"abcd"), Code.FRAME_SIZE_ERROR),
    "depends on itself": (
        frame(HEADERS, PRIORITISED | 4, 1, b"\x00\x00\x00\x01\x00"),
        Code.PROTOCOL_ERROR,
    ),
    "headers on 0": (frame(HEADERS, END_HEADERS, 0, REQUEST_BLOCK), Code.PROTOCOL_ERROR),
    "headers in pieces on 0": (frame(HEADERS, 0, 0, REQUEST_BLOCK), Code.PROTOCOL_ERROR),
    "headers on even": (frame(HEADERS, END_HEADERS, 2, REQUEST_BLOCK), Code.PROTOCOL_ERROR),
    "damaged block": (frame(HEADERS, END_HEADERS, 1, b"\xbf"), Code.COMPRESSION_ERROR),
    "continuation alone": (frame(CONTINUATION, 4, 1), Code.PROTOCOL_ERROR),
    "continuation elsewhere": (
        frame(HEADERS, 0, 1, REQUEST_BLOCK) + frame(CONTINUATION, 4, 3),
        Code.PROTOCOL_ERROR,
    ),
    "data in a block": (
        frame(HEADERS, 0, 1, REQUEST_BLOCK) + frame(DATA, 0, 1, b"x"),
        Code.PROTOCOL_ERROR,
    ),
    "headers in a block": (
        frame(HEADERS, 0, 1, REQUEST_BLOCK) + frame(HEADERS, 4, 3, REQUEST_BLOCK),
        Code.PROTOCOL_ERROR,
    ),
    "continuation flood": (
        frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 100,
        Code.ENHANCE_YOUR_CALM,
    ),
    "long continuation": (
        frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, bytes(20_000)) * 2,
        Code.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_connection_errors(name: str) -> None:
    attack, code = CONNECTION_ERRORS[name]
    server = ServerHarness().feed(attack)
    assert connection_error(server) == code


def test_a_window_setting_that_overflows_a_stream(server: ServerHarness) -> None:
    server.feed(
        server.headers(1, to("/test/Raw")), window(1, (1 << 31) - 70_000), settings(window=99_999)
    )
    assert connection_error(server) == Code.FLOW_CONTROL_ERROR


def test_headers_on_a_closed_stream(server: ServerHarness) -> None:
    server.feed(server.request(5), server.request(3))
    assert connection_error(server) == Code.STREAM_CLOSED


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", PREFACE[:-1] + b"x", b"\x16"])
def test_not_http2(start: bytes) -> None:
    server = ServerHarness(greet=False).feed(start)
    assert connection_error(server) == Code.PROTOCOL_ERROR


def test_settings_come_first() -> None:
    for first in (frame(PING, payload=bytes(8)), frame(SETTINGS, ACK), frame(DATA, 0, 1, b"x")):
        server = ServerHarness(greet=False).feed(PREFACE + first)
        assert connection_error(server) == Code.PROTOCOL_ERROR


def test_a_response_in_the_middle_of_the_input(server: ServerHarness) -> None:
    """A handler that finishes on a message, whole or in pieces, gets no more of the same frame."""
    for stream, cut in ((1, 0), (3, 4)):
        server.feed(server.headers(stream, to("/test/Raw")))
        server.calls[-1].on_message = lambda body: server.calls[-1].finish()
        data = message(b"a") + message(b"b")
        server.feed(
            frame(DATA, 0, stream, data[:cut]) if cut else b"", frame(DATA, 0, stream, data[cut:])
        )
        server.feed(frame(DATA, PADDED | END_STREAM, stream, b"\x00"))
    assert statuses(server) == ["0", "0"]
    assert server.events == []
    assert server.http2.error is None
