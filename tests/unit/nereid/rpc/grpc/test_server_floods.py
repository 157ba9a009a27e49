"""What the server's connection puts up with: silence, floods, and heads that are too large."""

from __future__ import annotations

import pytest

from nereid.rpc.http2.control_frames import Limits
from nereid.rpc.http2.frames import Code
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
from tests.support.rpc.http2_peers import Side, failed, statuses


def test_keepalive() -> None:
    side = Side(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    connection = side.connection
    assert connection.tick(1)
    assert connection.tick(10)
    assert side.take() == []
    assert connection.tick(11)
    assert side.one(PING).flags == 0
    assert connection.tick(15)
    side.give(frame(PING, ACK, 0, bytes(8)))
    assert connection.tick(16.1)
    assert connection.tick(26.2)
    assert side.one(PING)
    assert connection.tick(29)
    assert connection.tick(31)
    assert not connection.tick(31.3)


def test_idle_clients_are_left_alone_where_only_calls_are_worth_a_ping() -> None:
    limits = Limits(keepalive_interval_s=10, keepalive_timeout_s=5, keepalive_without_calls=False)
    side = Side(limits)
    for now in (1, 12, 40):
        assert side.connection.tick(now)
    assert side.take() == []


def test_a_process_that_stood_still_blames_nobody() -> None:
    side = Side(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    connection = side.connection
    for now in (1, 2, 12):
        assert connection.tick(now)
    assert side.one(PING)
    # A minute passes unnoticed; the answer is in the socket, but timers come first.
    assert connection.tick(72)
    assert connection.tick(75)
    assert not connection.tick(77.1)


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
def test_floods(side: Side, flood: bytes) -> None:
    side.give(flood * 900)
    assert side.connection.dead is None
    side.connection.tick(1)
    side.connection.tick(2)
    side.give(flood * 500)
    assert side.connection.dead is None
    side.give(flood * 700)
    assert side.connection.dead is not None
    assert side.connection.dead.code == Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("flags", [0, PADDED])
def test_empty_data_floods(side: Side, flags: int) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    side.give(frame(DATA, flags, 1, b"\x00" if flags else b"") * 1100)
    assert failed(side) == Code.ENHANCE_YOUR_CALM


def test_rapid_resets(side: Side) -> None:
    for stream in range(1, 12_000, 2):
        side.give(side.request(stream, path="/test/Hold"), frame(RST, 0, stream, bytes(4)))
        if side.connection.dead is not None:
            break
    assert side.connection.dead is not None
    assert side.connection.dead.code == Code.ENHANCE_YOUR_CALM
    assert 3000 < stream // 2 < 5000


def test_responses_that_are_not_read(side: Side) -> None:
    side.connection.set_blocked(True)
    for stream in range(1, 100_000, 2):
        side.give(side.request(stream, path="/test/" + "x" * 3000))
        if side.connection.dead is not None:
            break
    assert side.connection.dead is not None
    assert side.connection.dead.code == Code.ENHANCE_YOUR_CALM


def test_header_bombs() -> None:
    side = Side(Limits(max_header_list_bytes=2000))
    side.give(side.headers(1, [*REQUEST, ("x", "y" * 1000)]))
    bomb = side.encoder.encode([*REQUEST, *[("x", "y" * 1000)] * 200])
    assert len(bomb) < 300
    side.give(frame(HEADERS, END_HEADERS | END_STREAM, 3, bomb))
    assert "8" in statuses(side)
    for stream in range(5, 1000, 2):
        side.give(frame(HEADERS, END_HEADERS | END_STREAM, stream, bomb))
    assert side.connection.dead is not None
