"""Decompression in slices and within limits: a few bytes may inflate to thousands."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from typing import Final

# Inflating this much output takes some milliseconds.
_SLICE_BYTES: Final = 1 << 20
# Pieces of input are small, because zlib copies the unused part of a piece.
_INPUT_BYTES: Final = 1 << 16
_FIRST_INPUT_BYTES: Final = 1 << 9
_GZIP_BITS: Final = 31
_GZIP_MAGIC: Final = b"\x1f\x8b"
# Each gzip member counts as this much output, because even an empty one costs time.
_MEMBER_BYTES: Final = 1 << 12
# The ratio is not limited up to this size: a tensor of zeros is no attack.
_FREE_BYTES: Final = 64 << 20


class InflatedTooLargeError(Exception):
    """Raised if the inflated content would become larger than allowed."""


@dataclass(frozen=True, kw_only=True)
class InflationLimits:
    """Limits of an inflated content.

    max_ratio is the maximum ratio of inflated to compressed size above 64 MiB; None means no limit.
    Deflate reaches 1032 at most.
    """

    max_bytes: int
    max_ratio: float | None = None


class Inflation:
    """Content that is being decompressed."""

    def __init__(self, data: bytes, window_bits: int, limits: InflationLimits) -> None:
        """Begin a decompression; `window_bits` is zlib's number for the format."""
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
        self.done = False

    @property
    def intact(self) -> bool:
        """True if the content ended as its format requires, and no data follows."""
        return self._stream.eof and self._at == len(self._data)

    def inflate(self, size_bytes: int = _SLICE_BYTES) -> None:
        """Inflate about `size_bytes` more, or the rest.

        Raises zlib.error for damaged content (output before the damage is kept), and
        InflatedTooLargeError.
        """
        # Limit the members as well: thousands may be empty.
        stop_at = self.inflated_bytes + size_bytes
        stop_after = self._members + size_bytes // _MEMBER_BYTES
        while not self.done and self.inflated_bytes < stop_at and self._members <= stop_after:
            stream = self._stream
            piece: bytes | memoryview = self._tail
            if not piece:
                piece = self._data[self._at : self._at + self._piece_bytes]
                self._at += len(piece)
                self._piece_bytes = min(2 * self._piece_bytes, _INPUT_BYTES)
            # One byte more than the limit tells content that is too large from content that fits.
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
                # Go back to the member's end, where the next member begins.
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
        if self._has_members and bytes(self._data[self._at : self._at + 2]) == _GZIP_MAGIC:
            self._stream = zlib.decompressobj(_GZIP_BITS)
            self._members += 1
            # zlib copies the input after a member's end, so begin with small pieces.
            self._piece_bytes = _FIRST_INPUT_BYTES
        else:
            self.done = True

    def content(self) -> bytes:
        """Return the inflated content. Do not use the inflation afterwards."""
        # BytesIO returns its bytes object without a copy.
        return self._content.getvalue()


def _until_damage(stream: zlib._Decompress, piece: bytes | memoryview, allowed: int) -> bytes:
    """Recover a piece's output before the damage, which Python drops when zlib reports damage."""
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
