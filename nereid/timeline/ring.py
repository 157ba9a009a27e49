"""The last records of one kind, in memory: bounded, and cheap to add to.

A hot path appends a plain tuple of numbers and names, whose first item is when it ended; it becomes
a record when somebody asks. What a tuple refers to is kept for as long as the tuple: no payloads.
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
    """Of records of one size; several threads may append some."""

    def __init__(self, read: Callable[[Any], Any], max_records: int = MAX_RECORDS) -> None:
        """read: makes a record of what was appended."""
        self.read = read
        # At most max_records; read only.
        self.added: deque[Any] = deque(maxlen=max_records)
        # A deque's own: no call of ours on a hot path.
        self.append: Callable[[Any], None] = self.added.append

    @property
    def lost_until_ns(self) -> int:
        """When the last one ended that may have had to make way; 0: none has."""
        added = self.added
        return added[0][0] if len(added) == added.maxlen else 0

    def since(self, from_ns: int) -> list[Any]:
        """The tuples of what ended at this time or later, the oldest first."""
        added = self._copy()
        # Several threads, and events with a duration, come in almost this order.
        return added[bisect_left(added, from_ns, key=itemgetter(0)) :]

    def _copy(self) -> list[Any]:
        for _ in range(_ATTEMPTS):
            try:
                return list(self.added)
            except RuntimeError:
                # Another thread has appended one meanwhile.
                continue
        return []


class MemberRing(Ring):
    """Of records with members, which come last in their tuples, in one flat tuple. One thread
    appends.
    """

    def __init__(
        self, read: Callable[[Any], Any], width: int, max_records: int = MAX_RECORDS
    ) -> None:
        """width: how many values a member has."""
        super().__init__(read, max_records)
        self._width = width
        self._max_values = max_records * width
        # Of all members of tuples with more than one.
        self._values = 0
        self._dropped_until_ns = 0

    @property
    def lost_until_ns(self) -> int:
        return self._dropped_until_ns

    def append_many(self, ended: Any) -> None:
        """Append one that may have several members; append() is for one with one, while there is
        room.
        """
        if len(self.added) == self.added.maxlen:
            self._drop_first()
        self.added.append(ended)
        if len(ended[-1]) != self._width:
            self._values += len(ended[-1])
        while self._values > self._max_values:
            self._drop_first()

    def _drop_first(self) -> None:
        ended = self.added.popleft()
        self._dropped_until_ns = ended[0]
        if len(ended[-1]) != self._width:
            self._values -= len(ended[-1])
