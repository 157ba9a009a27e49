"""A raw HTTP/2 peer that writes whatever frames a test likes, and reads frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import hpack

from tests.support.rpc.http2_frames import REQUEST, RST, Fields

LIMIT_S = 10


def block(fields: Fields = REQUEST) -> bytes:
    return hpack.Encoder().encode(fields)


class Peer:
    """One raw connection; collects the frames the server sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                self.writer.write(part)
                await self.writer.drain()

    async def frames(self) -> AsyncIterator[tuple[int, int, int, bytes]]:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self.reader.readexactly(9)
                size = int.from_bytes(head[:3], "big")
                stream = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
                yield head[3], head[4], stream, await self.reader.readexactly(size)

    async def expect(self, kind: int) -> tuple[int, int, bytes]:
        """The next frame of this kind."""
        _, flags, stream, payload = await self.next_of(kind)
        return flags, stream, payload

    async def next_of(self, *kinds: int) -> tuple[int, int, int, bytes]:
        """The next frame of one of these kinds."""
        async with asyncio.timeout(LIMIT_S):
            async for found in self.frames():
                if found[0] in kinds:
                    return found
        raise AssertionError(f"the connection ended without a frame of {kinds}")

    async def expect_reset(self, stream: int, code: int) -> None:
        _, number, payload = await self.expect(RST)
        assert (number, int.from_bytes(payload, "big")) == (stream, code)
