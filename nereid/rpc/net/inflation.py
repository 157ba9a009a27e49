"""Decompression within bounds, in slices: a few bytes may become thousands of times as many.

An Inflation is one compressed content. InflationQueue runs those that are large in a thread, one
slice at a time, in which zlib leaves the interpreter to others; clients take turns.
"""

from __future__ import annotations

import asyncio
import io
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable

# Inflated in one go by the thread: some milliseconds.
_SLICE_BYTES: Final = 1 << 20
# zlib copies what it leaves of its input.
_INPUT_BYTES: Final = 1 << 16
# Up to here a content may be as repetitive as it likes: a tensor of zeros is no attack.
_FREE_BYTES: Final = 64 << 20


class InflatedTooLargeError(Exception):
    """More would come out than may."""


@dataclass(frozen=True, kw_only=True)
class InflationLimits:
    """max_ratio: how many times as large as its compressed form a content may be, past the first
    64 MiB; None: any number. deflate's largest is 1032.
    """

    max_bytes: int
    max_ratio: float | None = None


class Inflation:
    """One content that is being decompressed."""

    def __init__(self, data: bytes, window_bits: int, limits: InflationLimits) -> None:
        """window_bits: zlib's number for the format."""
        self._stream = zlib.decompressobj(window_bits)
        self._data = memoryview(data)
        self._at = 0
        self._tail = b""
        self._content = io.BytesIO()
        largest = limits.max_bytes
        if limits.max_ratio is not None:
            largest = min(largest, max(_FREE_BYTES, int(len(data) * limits.max_ratio)))
        self._largest_bytes = largest
        self.max_bytes = limits.max_bytes
        self.inflated_bytes = 0
        # Nothing more will come out.
        self.done = False

    @property
    def intact(self) -> bool:
        """Whether the format's own end was seen, with nothing behind it."""
        behind = self._stream.unused_data or self._at < len(self._data)
        return self._stream.eof and not behind

    def inflate(self, size_bytes: int = _SLICE_BYTES) -> None:
        """Inflate about so much more, or all that is left.

        Raises:
            zlib.error: the content is damaged; what came out before is kept.
            InflatedTooLargeError: it would exceed its limits.
        """
        stop_at = self.inflated_bytes + size_bytes
        stream = self._stream
        while not self.done and self.inflated_bytes < stop_at:
            piece: bytes | memoryview = self._tail
            if not piece:
                piece = self._data[self._at : self._at + _INPUT_BYTES]
                self._at += len(piece)
            # One byte more than allowed tells apart what fits exactly.
            allowed = min(stop_at - self.inflated_bytes, self._largest_bytes + 1)
            out = stream.decompress(piece, allowed)
            self._tail = stream.unconsumed_tail
            self.inflated_bytes += len(out)
            if self.inflated_bytes > self._largest_bytes:
                self.done = True
                raise InflatedTooLargeError
            self._content.write(out)
            exhausted = not self._tail and self._at >= len(self._data) and len(out) < allowed
            self.done = stream.eof or exhausted

    def content(self) -> bytes:
        """What came out; the inflation is of no use afterwards."""
        # Not copied: BytesIO hands out the bytes that it wrote to.
        return self._content.getvalue()


class InflationQueue:
    """Inflates large contents off the event loop. Belongs to one loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="inflate")
        self._busy = False
        self._waiting = FairQueue[asyncio.Future[None]]()

    async def run(self, peer: str, inflation: Inflation, hold: Callable[[int], None]) -> None:
        """Inflate all of it. peer: the client. hold: called with the number of bytes after each
        slice; what it raises ends the inflation, as what Inflation.inflate raises does.
        """
        loop = asyncio.get_running_loop()
        while not inflation.done:
            await self._take_turn(peer)
            before = inflation.inflated_bytes
            try:
                await loop.run_in_executor(self._threads, inflation.inflate)
            finally:
                self._end_turn()
            hold(inflation.inflated_bytes - before)

    async def copy(self, content: bytes, target: memoryview) -> None:
        """Copy a content in the thread: memory that is used for the first time takes long."""
        await asyncio.get_running_loop().run_in_executor(self._threads, _copy, content, target)

    def close(self) -> None:
        """Inflate no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take_turn(self, peer: str) -> None:
        if not self._busy:
            self._busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        ticket = self._waiting.add(peer, 0, turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.discard(ticket)
            if not turn.cancelled():
                self._end_turn()
            raise

    def _end_turn(self) -> None:
        turn = self._waiting.take()
        while turn is not None and turn.done():
            turn = self._waiting.take()
        if turn is None:
            self._busy = False
        else:
            turn.set_result(None)


def _copy(content: bytes, target: memoryview) -> None:
    source = memoryview(content)
    # A slice holds the interpreter's lock.
    for start in range(0, len(source), _SLICE_BYTES):
        end = start + _SLICE_BYTES
        target[start:end] = source[start:end]
