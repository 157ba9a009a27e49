"""A memo table with a bound, for values that are derived from bytes that clients repeat.

A full table starts anew, which bounds its memory without the bookkeeping of an LRU. Look-ups are
dict's own (`get`, `[]`); entries are added by `remember`. Bytes that clients never repeat fill a
table too, so its keys are bounded in bytes: long keys have values of several times their size.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# Size of two thousand heads of a model with a dozen tensors.
_MAX_TOTAL_BYTES: Final = 2 << 20


class BoundedCache(dict[Key, Value]):
    """Table of at most `max_entries`, with keys of at most `max_total_bytes` together.

    Keys longer than `max_key_bytes`, if given, are not remembered: their values are derived each
    time.
    """

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
        # Size of the keys since the table began anew.
        self._total_bytes = 0

    def remember(self, key: Key, value: Value) -> Value:
        """Add an entry, if its key is not too long, and return the value."""
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
    """Return the size of the texts in a key."""
    if isinstance(key, bytes | str):
        return len(key)
    return sum(map(_size_bytes, key)) if isinstance(key, tuple) else 0
