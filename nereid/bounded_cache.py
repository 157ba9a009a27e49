"""Cache with a size limit, for values derived from repeated bytes; a full cache is emptied."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# This is enough for two thousand different requests to a model with a dozen tensors.
_MAX_TOTAL_BYTES: Final = 2 << 20


class BoundedCache(dict[Key, Value]):
    """Cache limited in entries and in total key size; it stores no keys that are too long."""

    __slots__ = ("_max_entries", "_max_key_bytes", "_max_total_bytes", "_total_bytes")

    def __init__(
        self,
        max_entries: int,
        max_key_bytes: int | None = None,
        max_total_bytes: int = _MAX_TOTAL_BYTES,
    ) -> None:
        super().__init__()
        self._max_entries = max_entries
        self._max_key_bytes = max_key_bytes
        self._max_total_bytes = max_total_bytes
        # Size of the keys that were added since the cache was last emptied.
        self._total_bytes = 0

    def remember(self, key: Key, value: Value) -> Value:
        """Add an entry unless its key is too long, and return the value."""
        size_bytes = _size_bytes(key)
        if self._max_key_bytes is not None and size_bytes > self._max_key_bytes:
            return value
        if key not in self:
            self._total_bytes += size_bytes
            if len(self) >= self._max_entries or self._total_bytes > self._max_total_bytes:
                self.clear()
                self._total_bytes = size_bytes
        self[key] = value
        return value

    def clear(self) -> None:
        """Remove all entries."""
        super().clear()
        self._total_bytes = 0


def _size_bytes(key: Hashable) -> int:
    if isinstance(key, bytes | str):
        return len(key)
    return sum(map(_size_bytes, key)) if isinstance(key, tuple) else 0
