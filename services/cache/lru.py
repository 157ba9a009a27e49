"""The least recently used bytes go first: what a memory store keeps, and what it lets go.

Pure: the time is handed in. Knows nothing of what keys and values mean.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

# What an entry takes beside its key and value: the objects around them and its place in the table.
ENTRY_BYTES: Final = 160


class _Kept(NamedTuple):
    value: bytes
    expires_at_s: float | None


class LeastRecentlyUsed:
    """A table of at most so many bytes."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        # How many made room for others.
        self.evictions = 0
        self._table: OrderedDict[bytes, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def get(self, key: bytes, now_s: float) -> bytes | None:
        """The value of key, which is from now on the one used last."""
        kept = self._table.get(key)
        if kept is None:
            return None
        if kept.expires_at_s is not None and kept.expires_at_s <= now_s:
            self._remove(key)
            return None
        self._table.move_to_end(key)
        return kept.value

    def put(self, key: bytes, value: bytes, expires_at_s: float | None) -> bool:
        """Keep a value; False if it is larger than all there is room for."""
        self._remove(key)
        size = _size(key, value)
        if size > self.capacity_bytes:
            return False
        while self.used_bytes + size > self.capacity_bytes:
            self._remove(next(iter(self._table)))
            self.evictions += 1
        self._table[key] = _Kept(value, expires_at_s)
        self.used_bytes += size
        return True

    def _remove(self, key: bytes) -> None:
        kept = self._table.pop(key, None)
        if kept is not None:
            self.used_bytes -= _size(key, kept.value)


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + ENTRY_BYTES
