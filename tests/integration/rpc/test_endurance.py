"""Much at once: large messages through small windows, thousands of streams, and clients that take
nothing, in a process whose memory is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Iterator
from itertools import chain, repeat

import pytest

from nereid.rpc import SocketChannel
from tests.support.peers.measured_process import Measured, measured
from tests.support.rpc.echo_service import Site, serving, until
from tests.support.rpc.raw_peer import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    REQUEST,
    RST,
    SETTINGS,
    block,
    frame,
    request,
)
from tests.support.rpc.windowed_sender import MIB, NoWindowError, Sender, connect, opening, update

LIMIT_S = 60
LARGE = 64 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "steps"),
    [
        (1, chain(repeat(1, 200), repeat(65_536))),
        (0, chain((2, 3, 5, 7, 4_000, 16_383, 16_384, 16_385), repeat(70_001))),
        (65_535, repeat(32_768)),
    ],
    ids=["1 byte", "nothing", "64 KiB"],
)
async def test_large_messages_both_ways_through_small_windows(
    first: int, steps: Iterator[int]
) -> None:
    """Every byte comes, in order, and never one beyond the window."""
    body = random.Random(1).randbytes(MIB) * (LARGE // MIB)
    async with serving("own", Site()) as (_, address):
        peer = await connect(address)
        await peer.send(opening(first, connection=1 << 30))
        await Sender(peer).upload(1, body)
        got, window = bytearray(), first
        async with asyncio.timeout(LIMIT_S):
            async for kind, flags, stream, payload in peer.frames():
                assert kind != RST
                if kind == DATA:
                    window -= len(payload)
                    assert window >= 0
                    got += payload
                if kind == HEADERS and flags & END_STREAM:
                    break
                if stream and not window:
                    step = next(steps)
                    window += step
                    await peer.send(update(1, step))
        assert got[:5] == struct.pack(">BI", 0, LARGE)
        assert got[5:] == body
        peer.writer.close()


@pytest.mark.slow
async def test_thousands_of_streams_on_few_connections() -> None:
    site = Site()
    async with serving("own", site) as (_, address):
        channels = [SocketChannel(address) for _ in range(4)]
        calls = [
            asyncio.ensure_future(channels[number % 4].unary("/test/Hold", b"%d" % number))
            for number in range(4000)
        ]
        await until(lambda: len(site.calls) == 4000)
        # Somebody else notices nothing.
        other = SocketChannel(address)
        assert await other.unary("/test/Echo", b"x", timeout_s=LIMIT_S) == b"x"
        held = [call for call in site.calls if call.path == "/test/Hold"]
        random.Random(2).shuffle(held)
        for call in held[:1000]:
            call.reply(b"answered")
        for waiting in calls[::7]:
            waiting.cancel()
        await until(lambda: all(call.done for call in held) or sum(not c.done for c in held) < 3000)
        for call in held:
            call.reply(b"answered")
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        cancelled = sum(isinstance(each, asyncio.CancelledError) for each in outcomes)
        assert outcomes.count(b"answered") == 4000 - cancelled
        assert 0 < cancelled <= len(calls[::7])
        for channel in (*channels, other):
            await channel.close()


# --- memory


@pytest.fixture
async def echo() -> AsyncIterator[Measured]:
    async with measured("tests.support.rpc.echo_process") as process:
        yield process


async def responses(echo: Measured) -> None:
    channel = SocketChannel(echo.addresses[0])
    for _ in range(20):
        assert await channel.unary("/test/Echo", b"x", timeout_s=LIMIT_S) == b"x"
    await channel.close()


@pytest.mark.slow
@pytest.mark.parametrize("blind", [False, True], ids=["no window", "an unread socket"])
async def test_a_client_that_reads_nothing_costs_bounded_memory(
    echo: Measured, blind: bool
) -> None:
    await responses(echo)
    before = echo.peak_mib()
    peer = await connect(echo.addresses[0])
    await peer.send(opening(1 << 30 if blind else 0, connection=1 << 30))
    # A message is a MiB; the limit is 16, and the connection's window 4.
    sender, sent = Sender(peer, blind=blind), 0
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(NoWindowError):
            # Who goes on without a window is cut off.
            while sent < 400 and not peer.writer.transport.is_closing():
                sent += 1
                await sender.upload(2 * sent - 1, bytes(MIB))
    assert 16 < sent < 100
    await responses(echo)
    assert echo.peak_mib() - before < 100
    peer.writer.close()


@pytest.mark.slow
async def test_slow_half_closed_and_silent_connections_cost_no_worker(echo: Measured) -> None:
    """A thousand of every kind: others get responses, and in the end all is released."""
    await responses(echo)
    files, before = echo.open_files(), echo.peak_mib()
    hold = [(name, "/test/Hold" if name == ":path" else value) for name, value in REQUEST]
    starts = [
        b"",
        PREFACE[:7],
        PREFACE,
        PREFACE + frame(SETTINGS)[:5],
        PREFACE + frame(SETTINGS) + frame(HEADERS, 0, 1, block()),
        PREFACE + frame(SETTINGS) + frame(HEADERS, END_HEADERS, 1, block()),
        PREFACE + frame(SETTINGS) + request(1)[:-1],
        PREFACE + frame(SETTINGS) + frame(HEADERS, END_HEADERS, 1, block(hold)) + request(3)[:-3],
    ]
    peers = []
    for number in range(1000):
        peer = await connect(echo.addresses[0])
        await peer.send(starts[number % len(starts)])
        if number % 3 == 0:
            peer.writer.write_eof()
        peers.append(peer)
    await responses(echo)
    assert echo.peak_mib() - before < 100
    for peer in peers:
        peer.writer.transport.abort()
    await until(lambda: echo.open_files() <= files)
    await responses(echo)
