"""Limits of the server's connection: silence, floods, and heads that are too large."""

from __future__ import annotations

import pytest

from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.connection_harness import ServerHarness, connection_error, statuses
from tests.support.rpc.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    REQUEST,
    RST,
    SETTINGS,
    frame,
    to,
)


def test_keepalive() -> None:
    server = ServerHarness(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    http2 = server.http2
    assert http2.on_timer(1)
    assert http2.on_timer(10)
    assert server.sent_frames() == []
    assert http2.on_timer(11)
    assert server.one(PING).flags == 0
    assert http2.on_timer(15)
    server.feed(frame(PING, ACK, 0, bytes(8)))
    assert http2.on_timer(16.1)
    assert http2.on_timer(26.2)
    assert server.one(PING)
    assert http2.on_timer(29)
    assert http2.on_timer(31)
    assert not http2.on_timer(31.3)


def test_idle_clients_are_left_alone_where_only_calls_are_worth_a_ping() -> None:
    limits = Limits(keepalive_interval_s=10, keepalive_timeout_s=5, keepalive_without_calls=False)
    server = ServerHarness(limits)
    for now in (1, 12, 40):
        assert server.http2.on_timer(now)
    assert server.sent_frames() == []


def test_a_process_that_was_suspended_gives_the_peer_time_to_reply() -> None:
    server = ServerHarness(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    http2 = server.http2
    for now in (1, 2, 12):
        assert http2.on_timer(now)
    assert server.one(PING)
    # Suspended for a minute; the reply is in the socket, but timers run first.
    assert http2.on_timer(72)
    assert http2.on_timer(75)
    assert not http2.on_timer(77.1)


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS),
        frame(SETTINGS, ACK),
        frame(PRIORITY, 0, 1, b"\x00\x00\x00\x00\x01"),
        frame(0x55),
        frame(GOAWAY, 0, 0, bytes(8)),
    ],
)
def test_floods(server: ServerHarness, flood: bytes) -> None:
    server.feed(flood * 900)
    assert server.http2.error is None
    server.http2.on_timer(1)
    server.http2.on_timer(2)
    server.feed(flood * 500)
    assert server.http2.error is None
    server.feed(flood * 700)
    assert server.http2.error is not None
    assert server.http2.error.code == Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("flags", [0, PADDED])
def test_empty_data_floods(server: ServerHarness, flags: int) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.feed(frame(DATA, flags, 1, b"\x00" if flags else b"") * 1100)
    assert connection_error(server) == Code.ENHANCE_YOUR_CALM


def test_rapid_resets(server: ServerHarness) -> None:
    for stream in range(1, 12_000, 2):
        server.feed(server.request(stream, path="/test/Hold"), frame(RST, 0, stream, bytes(4)))
        if server.http2.error is not None:
            break
    assert server.http2.error is not None
    assert server.http2.error.code == Code.ENHANCE_YOUR_CALM
    assert 3000 < stream // 2 < 5000


def test_responses_that_are_not_read(server: ServerHarness) -> None:
    server.http2.sender.set_blocked(True)
    for stream in range(1, 100_000, 2):
        server.feed(server.request(stream, path="/test/" + "x" * 3000))
        if server.http2.error is not None:
            break
    assert server.http2.error is not None
    assert server.http2.error.code == Code.ENHANCE_YOUR_CALM


def test_header_bombs() -> None:
    server = ServerHarness(Limits(max_header_list_bytes=2000))
    server.feed(server.headers(1, [*REQUEST, ("x", "y" * 1000)]))
    bomb = server.encoder.encode([*REQUEST, *[("x", "y" * 1000)] * 200])
    assert len(bomb) < 300
    server.feed(frame(HEADERS, END_HEADERS | END_STREAM, 3, bomb))
    assert "8" in statuses(server)
    for stream in range(5, 1000, 2):
        server.feed(frame(HEADERS, END_HEADERS | END_STREAM, stream, bomb))
    assert server.http2.error is not None
