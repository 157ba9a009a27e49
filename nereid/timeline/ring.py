"""Rings of the last records of one kind, in memory: bounded, and cheap to add to.

Hot paths record numbers, written one behind the other, so that a record costs no object: objects
have to be freed one by one, long after they have left the processor's caches, and the garbage
collector visits them.
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

# Records of a Ring. A record takes about 300 bytes.
MAX_RECORDS: Final = 100_000
# Bytes of a PackedRing. A request at a gateway takes 38, a batch 88, and each of its members 28.
_MAX_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 1 << 16
_ATTEMPTS: Final = 8


class AnyRing(Protocol):
    """A ring, as its readers see it."""

    @property
    def lost_until_ns(self) -> int:
        """Latest end of the records that may have been dropped for newer ones; 0: none was."""

    def since(self, from_ns: int) -> Iterator[Any]:
        """Return the present records that ended at this time or later, the oldest first.

        Each record is made when it is asked for.
        """


class Ring:
    """Ring of tuples, to which several threads may append.

    The first item of a tuple is the time at which the record ended.
    """

    def __init__(self, read: Callable[[Any], Any], max_records: int = MAX_RECORDS) -> None:
        """Make an empty ring; read makes a record of a tuple."""
        self._read = read
        self._added: deque[Any] = deque(maxlen=max_records)
        self.append: Callable[[Any], None] = self._added.append

    @property
    def lost_until_ns(self) -> int:
        """See AnyRing."""
        added = self._added
        return int(added[0][0]) if len(added) == added.maxlen else 0

    def since(self, from_ns: int) -> Iterator[Any]:
        """See AnyRing."""
        added = self._copy()
        # Tuples are almost in the order of their ends: several threads append, and some events have
        # a duration.
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
    """Some whole records of a PackedRing."""

    data: bytes
    objects: list[Any]
    # Time at which the last of them ended.
    ended_ns: int


class PackedRing:
    """Ring of records of numbers, which one thread writes and another one may read.

    For each record, the thread writes its numbers to `piece`, appends what is no number to
    `objects`, and calls end(). Objects must be small, and shared by many records. Writing a number
    with too many bits raises ValueError; drop() then removes what was written of the record.
    """

    def __init__(
        self,
        read: Callable[[bytes, list[Any]], Iterable[tuple[int, Any]]],
        kept_ns: int,
        max_bytes: int = _MAX_BYTES,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        """Make an empty ring.

        read: returns the written records, each with the time at which it ended. kept_ns: the age
        from which a record may be dropped although there is room.
        """
        self.piece = BytesWriter()
        self.objects: list[Any] = []
        self._read = read
        self._kept_ns = kept_ns
        self._piece_bytes = piece_bytes
        self._max_pieces = max(1, max_bytes // piece_bytes)
        self._pieces: deque[Piece] = deque()
        # Bytes of whole records in `piece`, and the time at which the last of them ended.
        self._whole_bytes = 0
        self._ended_ns = 0
        self._lost_until_ns = 0
        # The lock keeps a piece from ending while it is read.
        self._lock = threading.Lock()

    @property
    def lost_until_ns(self) -> int:
        """See AnyRing."""
        return self._lost_until_ns

    @property
    def last_ended_ns(self) -> int:
        """Time at which the last record ended; 0: there was none."""
        return self._ended_ns

    def end(self, ended_ns: int) -> None:
        """End a record, which was written since the last call, at this time."""
        self._ended_ns = ended_ns
        self._whole_bytes = len(self.piece)
        if self._whole_bytes >= self._piece_bytes:
            self._end_piece()

    def drop(self) -> None:
        """Remove what was written since the last end()."""
        self.piece.truncate(self._whole_bytes)

    def _end_piece(self) -> None:
        with self._lock:
            pieces = self._pieces
            pieces.append(Piece(self.piece.getvalue(), self.objects, self._ended_ns))
            # The emptied writer keeps its memory.
            self.piece.truncate(0)
            self.objects, self._whole_bytes = [], 0
            kept_from_ns = self._ended_ns - self._kept_ns
            while len(pieces) > self._max_pieces or pieces[0].ended_ns < kept_from_ns:
                self._lost_until_ns = pieces.popleft().ended_ns

    def since(self, from_ns: int) -> Iterator[Any]:
        """See AnyRing."""
        with self._lock:
            pieces = [piece for piece in self._pieces if piece.ended_ns >= from_ns]
            whole_bytes, ended_ns = self._whole_bytes, self._ended_ns
            # The thread that writes may be in the middle of a record.
            data = self.piece.getvalue()[:whole_bytes]
            pieces.append(Piece(data, list(self.objects), ended_ns))
        return self._records(pieces, from_ns)

    def _records(self, pieces: list[Piece], from_ns: int) -> Iterator[Any]:
        for piece in pieces:
            for ended_ns, record in self._read(piece.data, piece.objects):
                if ended_ns >= from_ns:
                    yield record
