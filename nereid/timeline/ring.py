"""Rings of the last records of one kind: bounded, and cheap to add to.

Hot paths record plain numbers into bytes, because the garbage collector visits each object.
"""

# layout: compiled

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from librt.strings import BytesWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# A record takes about 300 bytes.
MAX_RECORDS: Final = 100_000
# A gateway's record of a request takes 38 bytes. A batch takes 88, and 28 for each member.
_MAX_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 1 << 16
_ATTEMPTS: Final = 8


class AnyRing(Protocol):
    """Interface of all rings, for code that reads records."""

    @property
    def lost_until_ns(self) -> int:
        """Latest end time of records that may have been dropped; 0 if no record was dropped."""

    def since(self, from_ns: int) -> Iterator[Any]:
        """Yield the records that ended at this time or later, the oldest first."""


class Ring:
    """Ring of tuples (end time of the record, ...). Several threads may append to it."""

    def __init__(self, read: Callable[[Any], Any], max_records: int = MAX_RECORDS) -> None:
        """Create an empty ring; read makes a record from a tuple."""
        self._read = read
        self._added: deque[Any] = deque(maxlen=max_records)
        self.append: Callable[[Any], None] = self._added.append

    @property
    def lost_until_ns(self) -> int:
        """Latest end time of dropped records; see AnyRing."""
        added = self._added
        return int(added[0][0]) if len(added) == added.maxlen else 0

    def since(self, from_ns: int) -> Iterator[Any]:
        """Return the records that ended at this time or later; see AnyRing."""
        added = self._copy()
        # Several threads append, and some events have a duration, so the order is only almost
        # right.
        return map(self._read, added[bisect_left(added, from_ns, key=itemgetter(0)) :])

    def _copy(self) -> list[Any]:
        for _ in range(_ATTEMPTS):
            try:
                return list(self._added)
            except RuntimeError:
                # Another thread appended a tuple during the copy.
                continue
        return []


class Piece(NamedTuple):
    """Some complete records of a PackedRing."""

    data: bytes
    objects: list[Any]
    # Time at which the last of these records ended.
    ended_ns: int


class PackedRing:
    """Ring of records that consist of numbers, written by one thread and read by others.

    The writer fills `piece` and `objects` (few, small, shared by many records), then calls end(). A
    number with too many bits raises ValueError; drop() then removes the record.
    """

    def __init__(
        self,
        read: Callable[[bytes, list[Any]], Iterable[tuple[int, Any]]],
        kept_ns: int,
        max_bytes: int = _MAX_BYTES,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        """Create an empty ring; records older than kept_ns may be dropped early."""
        self.piece = BytesWriter()
        self.objects: list[Any] = []
        self._read = read
        self._kept_ns = kept_ns
        self._piece_bytes = piece_bytes
        self._max_pieces = max(1, max_bytes // piece_bytes)
        self._pieces: deque[Piece] = deque()
        # Size of the complete records in `piece`, and end time of the last of them.
        self._whole_bytes = 0
        self._ended_ns = 0
        self._lost_until_ns = 0
        # Keeps a piece from being completed while it is read.
        self._lock = threading.Lock()

    @property
    def lost_until_ns(self) -> int:
        """Latest end time of dropped records; see AnyRing."""
        return self._lost_until_ns

    @property
    def last_ended_ns(self) -> int:
        """Time at which the last record ended; 0 if there is none."""
        return self._ended_ns

    def end(self, ended_ns: int) -> None:
        """Complete the record that was written since the last call; it ended at ended_ns."""
        self._ended_ns = ended_ns
        self._whole_bytes = len(self.piece)
        if self._whole_bytes >= self._piece_bytes:
            self._end_piece()

    def drop(self) -> None:
        """Remove everything that was written since the last end()."""
        self.piece.truncate(self._whole_bytes)

    def _end_piece(self) -> None:
        with self._lock:
            pieces = self._pieces
            pieces.append(Piece(self.piece.getvalue(), self.objects, self._ended_ns))
            # The writer keeps its memory when it is emptied.
            self.piece.truncate(0)
            self.objects, self._whole_bytes = [], 0
            kept_from_ns = self._ended_ns - self._kept_ns
            while len(pieces) > self._max_pieces or pieces[0].ended_ns < kept_from_ns:
                self._lost_until_ns = pieces.popleft().ended_ns

    def since(self, from_ns: int) -> Iterator[Any]:
        """Return the records that ended at this time or later; see AnyRing."""
        with self._lock:
            pieces = [piece for piece in self._pieces if piece.ended_ns >= from_ns]
            whole_bytes, ended_ns = self._whole_bytes, self._ended_ns
            # The writing thread may be in the middle of a record.
            data = self.piece.getvalue()[:whole_bytes]
            pieces.append(Piece(data, list(self.objects), ended_ns))
        return self._records(pieces, from_ns)

    def _records(self, pieces: list[Piece], from_ns: int) -> Iterator[Any]:
        for piece in pieces:
            for ended_ns, record in self._read(piece.data, piece.objects):
                if ended_ns >= from_ns:
                    yield record
