"""The last records of one kind, in memory: bounded, and cheap to add to.

A hot path adds a plain tuple of numbers and names, whose first item is when it ended; it becomes a
record when somebody asks. What a tuple refers to is kept for as long as the tuple: no payloads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Of one kind, members of batches included. One takes about 300 bytes.
MAX_RECORDS: Final = 100_000
_ATTEMPTS: Final = 8


class Ring:
    """Several threads may add to it, where nothing has members."""

    def __init__(
        self,
        read: Callable[[Any], Any],
        max_records: int = MAX_RECORDS,
        *,
        members_at: int = -1,
    ) -> None:
        """read: makes a record of a tuple. members_at: where tuples have their members; -1: they
        have none.
        """
        self.read = read
        self._max_records = max_records
        self._members_at = members_at
        self._added: deque[Any] = deque()
        # Of all tuples.
        self._members = 0
        # When the last one ended that had to make way.
        self.lost_until_ns = 0

    def add(self, ended: Any, members: int = 0) -> None:
        """Add a tuple with so many members."""
        self._added.append(ended)
        self._members += members
        if len(self._added) + self._members > self._max_records:
            self._make_way()

    def _make_way(self) -> None:
        while len(self._added) + self._members > self._max_records:
            ended = self._added.popleft()
            self.lost_until_ns = ended[0]
            if self._members_at >= 0:
                self._members -= len(ended[self._members_at])

    def since(self, from_ns: int) -> list[Any]:
        """The tuples of what ended at this time or later, the oldest first."""
        added = self._copy()
        # Several threads, and events with a duration, come in almost this order.
        return added[bisect_left(added, from_ns, key=itemgetter(0)) :]

    def _copy(self) -> list[Any]:
        for _ in range(_ATTEMPTS):
            try:
                return list(self._added)
            except RuntimeError:
                # Another thread has added one meanwhile.
                continue
        return []
