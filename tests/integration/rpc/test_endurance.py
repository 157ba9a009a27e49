"""Much at once: large messages through small windows."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from tests.support.rpc.echo_service import Site, serving
from tests.support.rpc.http2_frames import DATA, END_STREAM, HEADERS, RST, window
from tests.support.rpc.windowed_sender import MIB, Sender, connect, opening

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
        got, left = bytearray(), first
        async with asyncio.timeout(LIMIT_S):
            async for kind, flags, stream, payload in peer.frames():
                assert kind != RST
                if kind == DATA:
                    left -= len(payload)
                    assert left >= 0
                    got += payload
                if kind == HEADERS and flags & END_STREAM:
                    break
                if stream and not left:
                    step = next(steps)
                    left += step
                    await peer.send(window(1, step))
        assert got[:5] == struct.pack(">BI", 0, LARGE)
        assert got[5:] == body
        peer.writer.close()


# --- memory
