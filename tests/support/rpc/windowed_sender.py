"""Sends requests of any size over a raw peer's connection, within its windows."""

from __future__ import annotations

import asyncio
import struct

from tests.support.rpc.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW,
    frame,
    message,
    settings,
    to,
    window,
)
from tests.support.rpc.raw_peer import Peer, block

MIB = 1 << 20


async def connect(address: str) -> Peer:
    host, _, port = address.rpartition(":")
    return Peer(*await asyncio.open_connection(host, int(port)))


def opening(size: int, *, connection: int = 0) -> bytes:
    """Preface and settings; connection: how far its window grows."""
    return PREFACE + settings(window=size) + (window(0, connection) if connection else b"")


class Sender:
    """Sends requests of any size over a peer's connection, within the windows that it is given."""

    def __init__(self, peer: Peer, path: str = "/test/Echo") -> None:
        self.peer = peer
        self.path = path
        self.windows = {0: 65_535}
        self.initial = 65_535

    async def open(self, stream: int) -> None:
        await self.peer.send(frame(HEADERS, END_HEADERS, stream, block(to(self.path))))
        self.windows[stream] = self.initial

    async def upload(self, stream: int, body: bytes) -> None:
        """A whole request."""
        await self.open(stream)
        await self.message(stream, body, END_STREAM)
        del self.windows[stream]

    async def message(self, stream: int, body: bytes, flags: int = 0) -> None:
        """flags: of the last frame."""
        rest = memoryview(message(body))
        windows = self.windows
        while rest:
            size = min(16_384, len(rest), windows[0], windows[stream])
            if size <= 0:
                await self.await_window(stream)
                continue
            piece, rest = rest[:size], rest[size:]
            windows[0] -= size
            windows[stream] -= size
            await self.peer.send(frame(DATA, 0 if rest else flags, stream, bytes(piece)))

    async def await_window(self, stream: int) -> None:
        while min(self.windows[0], self.windows[stream]) <= 0:
            kind, _, of, payload = await self.peer.next_of(SETTINGS, WINDOW)
            if kind == WINDOW:
                self.windows[of] = self.windows.get(of, 0) + int.from_bytes(payload)
            elif payload:
                initial = dict(struct.iter_unpack(">HI", payload))[4]
                self.windows[stream] += initial - self.initial
                self.initial = initial
