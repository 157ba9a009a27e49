"""Frames that are wrong: what ends a stream, and what ends the server's whole connection."""

from __future__ import annotations

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
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    SETTINGS,
    frame,
    message,
    settings,
    to,
    window,
)

# --- errors of streams


def test_a_stream_error_cancels_its_call_alone(server: ServerHarness) -> None:
    server.feed(server.request(1, path="/test/Hold"), window(1, 0), server.request(3))
    assert response_of(server, 3) == b"hi"
    assert server.events == ["cancelled"]


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


# --- errors of connections

# Beyond the rows of RFC 9113.
REQUEST_BLOCK = b"\x83\x86\x84"
CONNECTION_ERRORS: dict[str, tuple[bytes, Code]] = {
    "large control frame": (frame(PING, payload=bytes(20_000)), Code.ENHANCE_YOUR_CALM),
    "large header frame": (frame(HEADERS, 0, 1, bytes(40_000))[:9], Code.ENHANCE_YOUR_CALM),
    "headers padding of none": (frame(HEADERS, PADDED | 4, 1), Code.PROTOCOL_ERROR),
    "headers in a block": (
        frame(HEADERS, 0, 1, REQUEST_BLOCK) + frame(HEADERS, 4, 3, REQUEST_BLOCK),
        Code.PROTOCOL_ERROR,
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


def test_a_claimed_connection_has_no_second_call(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.calls[0].claim_connection()
    received: list[bytes] = []
    server.calls[0].on_message = received.append
    server.feed(frame(DATA, 0, 1, message(b"a")))
    assert received == [b"a"]
    server.feed(server.request(3))
    assert connection_error(server) == Code.PROTOCOL_ERROR
    assert len(server.calls) == 1


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
