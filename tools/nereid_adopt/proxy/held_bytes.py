"""Bytes that the proxy holds for copies, of all connections together.

A request or response that finds no space is passed on as it arrives, and has no copy.
"""

# layout: compiled

from __future__ import annotations

from typing import Final

NO_SPACE: Final = "the proxy's memory for copies was full"
# So much of each request or response is held in any case: small ones always have copies.
_ALWAYS_HELD_BYTES: Final = 16384


class HeldBytes:
    """The bytes of all holders."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """True if a large request finds no space."""
        return self.size_bytes >= self.max_bytes


class Holder:
    """The bytes of one request or response. They are released with the holder."""

    __slots__ = ("_all", "size_bytes")

    def __init__(self, all_bytes: HeldBytes) -> None:
        self._all = all_bytes
        self.size_bytes = 0

    def add(self, size_bytes: int) -> bool:
        """Hold further bytes; return False, and hold none of them, if there is no space."""
        size = self.size_bytes + size_bytes
        total = self._all.size_bytes + size_bytes
        if total > self._all.max_bytes and size > _ALWAYS_HELD_BYTES:
            return False
        self.size_bytes = size
        self._all.size_bytes = total
        return True

    def release(self) -> None:
        """Release all bytes."""
        self._all.size_bytes -= self.size_bytes
        self.size_bytes = 0

    def __del__(self) -> None:
        self.release()
