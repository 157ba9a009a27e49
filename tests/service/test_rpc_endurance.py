"""Much at once: large messages through small windows, thousands of streams, and clients that take
nothing, in a process whose memory is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import pytest

from nereid.rpc import SocketChannel
from tests.service.rpc_peer import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    REQUEST,
    RST,
    SETTINGS,
    WINDOW,
    Peer,
    block,
    frame,
    request,
)
from tests.service.rpc_site import Site, serving, until

LIMIT_S = 60
MIB = 1 << 20
LARGE = 64 * MIB
ROOT = Path(__file__).parents[2]


async def connect(address: str) -> Peer:
    host, _, port = address.rpartition(":")
    return Peer(*await asyncio.open_connection(host, int(port)))


def opening(window: int, *, connection: int = 0) -> bytes:
    """Preface and settings; connection: how far its window grows."""
    start = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window))
    return start + (update(0, connection) if connection else b"")


def update(stream: int, increment: int) -> bytes:
    return frame(WINDOW, 0, stream, struct.pack(">I", increment))


class NoRoomError(Exception):
    """The server has seen everything, and gives no window for more."""


class Sender:
    """Sends requests of any size over a peer's connection, within the windows that it is given."""

    def __init__(self, peer: Peer, *, blind: bool = False) -> None:
        """blind: reads nothing, and takes it that there is room again."""
        self.peer = peer
        self.blind = blind
        self.room = {0: 65_535}
        self.initial = 65_535
        self.pings = 0

    async def upload(self, stream: int, body: bytes) -> None:
        await self.peer.send(frame(HEADERS, END_HEADERS, stream, block()))
        rest = memoryview(struct.pack(">BI", 0, len(body)) + body)
        room = self.room
        room[stream] = self.initial
        while rest:
            size = min(16_384, len(rest), room[0], room[stream])
            if size <= 0:
                await self.learn(stream)
                continue
            piece, rest = rest[:size], rest[size:]
            room[0] -= size
            room[stream] -= size
            await self.peer.send(frame(DATA, 0 if rest else END_STREAM, stream, bytes(piece)))
        del room[stream]

    async def learn(self, stream: int) -> None:
        """Learn of more room, or that there is none for now: a ping comes back first."""
        if self.blind:
            self.room[0] += MIB
            self.room[stream] += MIB
            return
        self.pings += 1
        token = struct.pack(">Q", self.pings)
        await self.peer.send(frame(PING, 0, 0, token))
        while True:
            kind, _, of, payload = await self.peer.next_of(SETTINGS, WINDOW, PING)
            if kind == WINDOW:
                self.room[of] = self.room.get(of, 0) + int.from_bytes(payload)
            elif kind == PING and payload == token:
                raise NoRoomError
            elif kind == SETTINGS and payload:
                initial = dict(struct.iter_unpack(">HI", payload))[4]
                self.room[stream] += initial - self.initial
                self.initial = initial
            if kind != PING and self.room[0] > 0 and self.room[stream] > 0:
                return


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
    """Every byte comes, in order, and never one that the window has no room for."""
    body = random.Random(1).randbytes(MIB) * (LARGE // MIB)
    async with serving("own", Site()) as (_, address):
        peer = await connect(address)
        await peer.send(opening(first, connection=1 << 30))
        await Sender(peer).upload(1, body)
        got, room = bytearray(), first
        async with asyncio.timeout(LIMIT_S):
            async for kind, flags, stream, payload in peer.frames():
                assert kind != RST
                if kind == DATA:
                    room -= len(payload)
                    assert room >= 0
                    got += payload
                if kind == HEADERS and flags & END_STREAM:
                    break
                if stream and not room:
                    step = next(steps)
                    room += step
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
        told = await asyncio.gather(*calls, return_exceptions=True)
        cancelled = sum(isinstance(each, asyncio.CancelledError) for each in told)
        assert told.count(b"answered") == 4000 - cancelled
        assert 0 < cancelled <= len(calls[::7])
        for channel in (*channels, other):
            await channel.close()


# --- memory


@dataclass
class Echo:
    """The echo server's process."""

    address: str
    process: asyncio.subprocess.Process

    def peak_mib(self) -> float:
        """The most memory that it ever held."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def answers(self) -> None:
        channel = SocketChannel(self.address)
        for _ in range(20):
            assert await channel.unary("/test/Echo", b"x", timeout_s=LIMIT_S) == b"x"
        await channel.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.service.rpc_echo_process"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = (await asyncio.wait_for(process.stdout.readline(), LIMIT_S)).decode().strip()
        yield Echo(address, process)
        process.stdin.write_eof()
        assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("blind", [False, True], ids=["no window", "an unread socket"])
async def test_a_client_that_takes_nothing_costs_bounded_memory(echo: Echo, blind: bool) -> None:
    await echo.answers()
    before = echo.peak_mib()
    peer = await connect(echo.address)
    await peer.send(opening(1 << 30 if blind else 0, connection=1 << 30))
    # A message is a MiB; the limit is 16, and the connection's window 4.
    sender, sent = Sender(peer, blind=blind), 0
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(NoRoomError):
            # Who goes on without a window is cut off.
            while sent < 400 and not peer.writer.transport.is_closing():
                sent += 1
                await sender.upload(2 * sent - 1, bytes(MIB))
    assert 16 < sent < 100
    await echo.answers()
    assert echo.peak_mib() - before < 100
    peer.writer.close()


@pytest.mark.slow
async def test_slow_half_closed_and_silent_connections_cost_no_worker(echo: Echo) -> None:
    """A thousand of every kind: the living are answered, and in the end all is given back."""
    await echo.answers()
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
        peer = await connect(echo.address)
        await peer.send(starts[number % len(starts)])
        if number % 3 == 0:
            peer.writer.write_eof()
        peers.append(peer)
    await echo.answers()
    assert echo.peak_mib() - before < 100
    for peer in peers:
        peer.writer.transport.abort()
    await until(lambda: echo.open_files() <= files)
    await echo.answers()
