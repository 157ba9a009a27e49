"""A table of bounded size that evicts the least recently used entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

# Bytes that an entry takes besides key and value: objects, and a slot in the table.
ENTRY_BYTES: Final = 160


class _Entry(NamedTuple):
    value: bytes
    expires_at_s: float | None


class LeastRecentlyUsed:
    """Values by key, with a total size of at most `capacity_bytes`."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.evictions = 0
        self._table: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def get(self, key: bytes, now_s: float) -> bytes | None:
        """Return the value of a key, or None; the key becomes the most recently used one."""
        entry = self._table.get(key)
        if entry is None:
            return None
        if entry.expires_at_s is not None and entry.expires_at_s <= now_s:
            self._remove(key)
            return None
        self._table.move_to_end(key)
        return entry.value

    def insert(self, key: bytes, value: bytes, expires_at_s: float | None) -> bool:
        """Keep a value; return False if the value alone exceeds the capacity."""
        self._remove(key)
        size = _size(key, value)
        if size > self.capacity_bytes:
            return False
        while self.used_bytes + size > self.capacity_bytes:
            self._remove(next(iter(self._table)))
            self.evictions += 1
        self._table[key] = _Entry(value, expires_at_s)
        self.used_bytes += size
        return True

    def _remove(self, key: bytes) -> None:
        entry = self._table.pop(key, None)
        if entry is not None:
            self.used_bytes -= _size(key, entry.value)


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + ENTRY_BYTES
