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
_FIRST_INPUT_BYTES: Final = 1 << 9
_GZIP_BITS: Final = 31
_GZIP_MAGIC: Final = b"\x1f\x8b"
# Of output, as which each member of a gzip content counts.
_MEMBER_BYTES: Final = 1 << 12
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
        self._has_members = window_bits >= _GZIP_BITS and data[:2] == _GZIP_MAGIC
        self._members = 1
        self._data = memoryview(data)
        self._at = 0
        self._tail = b""
        self._piece_bytes = _INPUT_BYTES
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
        return self._stream.eof and self._at == len(self._data)

    def inflate(self, size_bytes: int = _SLICE_BYTES) -> None:
        """Inflate about so much more, or all that is left.

        Raises:
            zlib.error: the content is damaged; what came out before is kept.
            InflatedTooLargeError: it would exceed its limits.
        """
        # Members may be empty: each counts as what it costs.
        stop_at = self.inflated_bytes + size_bytes
        stop_after = self._members + size_bytes // _MEMBER_BYTES
        while not self.done and self.inflated_bytes < stop_at and self._members <= stop_after:
            stream = self._stream
            piece: bytes | memoryview = self._tail
            if not piece:
                piece = self._data[self._at : self._at + self._piece_bytes]
                self._at += len(piece)
                self._piece_bytes = min(2 * self._piece_bytes, _INPUT_BYTES)
            # One byte more than allowed tells apart what fits exactly.
            allowed = min(stop_at - self.inflated_bytes, self._largest_bytes + 1)
            before = stream.copy()
            try:
                out = stream.decompress(piece, allowed)
            except zlib.error:
                self._keep(_until_damage(before, piece, allowed))
                self.done = True
                raise
            self._tail = stream.unconsumed_tail
            self._keep(out)
            if stream.eof:
                # What is left of the piece is read again, by the next member.
                self._tail = b""
                self._at -= len(stream.unused_data)
                self._begin_member()
            else:
                exhausted = not self._tail and self._at >= len(self._data)
                self.done = exhausted and len(out) < allowed

    def _keep(self, out: bytes) -> None:
        self.inflated_bytes += len(out)
        if self.inflated_bytes > self._largest_bytes:
            self.done = True
            raise InflatedTooLargeError
        self._content.write(out)

    def _begin_member(self) -> None:
        """Go on with the next member of a gzip content (RFC 1952), if there is one."""
        if self._has_members and bytes(self._data[self._at : self._at + 2]) == _GZIP_MAGIC:
            self._stream = zlib.decompressobj(_GZIP_BITS)
            self._members += 1
            # zlib copies what follows the end: of small members little.
            self._piece_bytes = _FIRST_INPUT_BYTES
        else:
            self.done = True

    def content(self) -> bytes:
        """What came out; the inflation is of no use afterwards."""
        # Not copied: BytesIO hands out the bytes that it wrote to.
        return self._content.getvalue()


def _until_damage(stream: zlib._Decompress, piece: bytes | memoryview, allowed: int) -> bytes:
    """What comes out of a damaged piece before the damaged byte, such as all where the checksum at
    the end is wrong: zlib has it, and Python drops it. allowed: as many bytes at most.
    """
    out = bytearray()
    while len(piece) > 1 and len(out) < allowed:
        half = len(piece) // 2
        attempt = stream.copy()
        try:
            out += attempt.decompress(piece[:half], allowed - len(out))
        except zlib.error:
            piece = piece[:half]
        else:
            stream, piece = attempt, piece[half:]
    return bytes(out)
