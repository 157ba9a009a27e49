"""A memo table with a bound, for what is derived from bytes that clients repeat.

A full table starts anew, which bounds its memory without the bookkeeping of an LRU. Lookups are
dict's own (`get`, `[]`); entries are added by `remember`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value]):
    """At most `max_entries`. Keys longer than `max_key_bytes`, if given, are not remembered: their
    values are derived each time.
    """

    __slots__ = ("_max_entries", "_max_key_bytes")

    def __init__(self, max_entries: int, max_key_bytes: int | None = None) -> None:
        super().__init__()
        self._max_entries = max_entries
        self._max_key_bytes = max_key_bytes

    def remember(self, key: Key, value: Value) -> Value:
        """Add an entry, if its key is not too long; returns the value."""
        max_key_bytes = self._max_key_bytes
        if max_key_bytes is None or len(key) <= max_key_bytes:  # type: ignore[arg-type]
            if len(self) >= self._max_entries and key not in self:
                self.clear()
            self[key] = value
        return value
