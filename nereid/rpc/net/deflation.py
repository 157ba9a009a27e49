"""Compression in slices, of what would take long at once. A ZlibQueue runs it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Compressed in one go: some milliseconds.
_SLICE_BYTES: Final = 262_144


class Deflation:
    """One content that is being compressed."""

    def __init__(
        self,
        parts: Sequence[bytes | memoryview],
        window_bits: int,
        level: int = zlib.Z_DEFAULT_COMPRESSION,
    ) -> None:
        """window_bits: zlib's number for the format."""
        self._stream = zlib.compressobj(level, zlib.DEFLATED, window_bits)
        self._parts = [memoryview(part) for part in reversed(parts) if part]
        self._pieces: list[bytes] = []
        # All is compressed.
        self.done = False

    def deflate(self, size_bytes: int = _SLICE_BYTES) -> None:
        """Compress about so many bytes more."""
        while self._parts and size_bytes > 0:
            part = self._parts.pop()
            if len(part) > size_bytes:
                self._parts.append(part[size_bytes:])
                part = part[:size_bytes]
            size_bytes -= len(part)
            self._pieces.append(self._stream.compress(part))
        if not self._parts:
            self._pieces.append(self._stream.flush())
            self.done = True

    def content(self) -> bytes:
        """What came out, once it is done."""
        return b"".join(self._pieces)
