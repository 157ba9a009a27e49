"""What the server's connection puts up with: silence, floods, and heads that are too large."""

from __future__ import annotations

import pytest

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
    http2 = side.http2
    assert http2.on_timer(1)
    assert http2.on_timer(10)
    assert side.take() == []
    assert http2.on_timer(11)
    assert side.one(PING).flags == 0
    assert http2.on_timer(15)
    side.give(frame(PING, ACK, 0, bytes(8)))
    assert http2.on_timer(16.1)
    assert http2.on_timer(26.2)
    assert side.one(PING)
    assert http2.on_timer(29)
    assert http2.on_timer(31)
    assert not http2.on_timer(31.3)


def test_idle_clients_are_left_alone_where_only_calls_are_worth_a_ping() -> None:
    limits = Limits(keepalive_interval_s=10, keepalive_timeout_s=5, keepalive_without_calls=False)
    side = Side(limits)
    for now in (1, 12, 40):
        assert side.http2.on_timer(now)
    assert side.take() == []


def test_a_process_that_stood_still_blames_nobody() -> None:
    side = Side(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    http2 = side.http2
    for now in (1, 2, 12):
        assert http2.on_timer(now)
    assert side.one(PING)
    # A minute passes unnoticed; the answer is in the socket, but timers come first.
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
def test_floods(side: Side, flood: bytes) -> None:
    side.give(flood * 900)
    assert side.http2.error is None
    side.http2.on_timer(1)
    side.http2.on_timer(2)
    side.give(flood * 500)
    assert side.http2.error is None
    side.give(flood * 700)
    assert side.http2.error is not None
    assert side.http2.error.code == Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("flags", [0, PADDED])
def test_empty_data_floods(side: Side, flags: int) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    side.give(frame(DATA, flags, 1, b"\x00" if flags else b"") * 1100)
    assert failed(side) == Code.ENHANCE_YOUR_CALM


def test_rapid_resets(side: Side) -> None:
    for stream in range(1, 12_000, 2):
        side.give(side.request(stream, path="/test/Hold"), frame(RST, 0, stream, bytes(4)))
        if side.http2.error is not None:
            break
    assert side.http2.error is not None
    assert side.http2.error.code == Code.ENHANCE_YOUR_CALM
    assert 3000 < stream // 2 < 5000


def test_responses_that_are_not_read(side: Side) -> None:
    side.http2.sender.set_blocked(True)
    for stream in range(1, 100_000, 2):
        side.give(side.request(stream, path="/test/" + "x" * 3000))
        if side.http2.error is not None:
            break
    assert side.http2.error is not None
    assert side.http2.error.code == Code.ENHANCE_YOUR_CALM


def test_header_bombs() -> None:
    side = Side(Limits(max_header_list_bytes=2000))
    side.give(side.headers(1, [*REQUEST, ("x", "y" * 1000)]))
    bomb = side.encoder.encode([*REQUEST, *[("x", "y" * 1000)] * 200])
    assert len(bomb) < 300
    side.give(frame(HEADERS, END_HEADERS | END_STREAM, 3, bomb))
    assert "8" in statuses(side)
    for stream in range(5, 1000, 2):
        side.give(frame(HEADERS, END_HEADERS | END_STREAM, stream, bomb))
    assert side.http2.error is not None
