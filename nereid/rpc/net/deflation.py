"""Compression in slices, run by a ZlibQueue, for content that takes long to compress."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Compressing this much input takes some milliseconds.
_SLICE_BYTES: Final = 262_144


class Deflation:
    """Content that is being compressed."""

    def __init__(
        self,
        parts: Sequence[bytes | memoryview],
        window_bits: int,
        level: int = zlib.Z_DEFAULT_COMPRESSION,
    ) -> None:
        """Begin a compression; `window_bits` is zlib's number for the format."""
        self._stream = zlib.compressobj(level, zlib.DEFLATED, window_bits)
        self._parts = [memoryview(part) for part in reversed(parts) if part]
        self._pieces: list[bytes] = []
        self.done = False

    def deflate(self, size_bytes: int = _SLICE_BYTES) -> None:
        """Compress about `size_bytes` more of the input."""
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
        """Return the compressed content, once `done` is True."""
        return b"".join(self._pieces)
