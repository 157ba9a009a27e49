"""Decompression within bounds, in slices: a few bytes may become thousands of times as many.

An Inflation is one compressed content. Large ones are run by a ZlibQueue.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from typing import Final

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
