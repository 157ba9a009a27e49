"""The last records of one kind, in memory: bounded, and cheap to add to.

What hot paths record are numbers, written one behind the other, so that a record costs no object:
objects have to be freed one by one, long after they have left the processor's caches, and the
garbage collector visits them.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from librt.strings import BytesWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Of a Ring. One takes about 300 bytes.
MAX_RECORDS: Final = 100_000
# Of a PackedRing. A request at a gateway takes 38, a batch 88, and each of its members 28.
_MAX_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 1 << 16
_ATTEMPTS: Final = 8


class AnyRing(Protocol):
    """How rings are read."""

    @property
    def lost_until_ns(self) -> int:
        """When the last one ended that may have had to make way; 0: none has."""

    def since(self, from_ns: int) -> Iterator[Any]:
        """The records of what ended at this time or later, the oldest first: those that there are
        now, each made as it is asked for.
        """


class Ring:
    """Of tuples whose first item is when the record ended; several threads may append some."""

    def __init__(self, read: Callable[[Any], Any], max_records: int = MAX_RECORDS) -> None:
        """read: makes a record of a tuple."""
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
        # Several threads, and events with a duration, come in almost this order.
        return map(self._read, added[bisect_left(added, from_ns, key=itemgetter(0)) :])

    def _copy(self) -> list[Any]:
        for _ in range(_ATTEMPTS):
            try:
                return list(self._added)
            except RuntimeError:
                # Another thread has appended one meanwhile.
                continue
        return []


class Piece(NamedTuple):
    """Some records of a PackedRing, whole ones."""

    data: bytes
    objects: list[Any]
    # When the last one ended.
    ended_ns: int


class PackedRing:
    """Of records that one thread writes to `piece`, then what is no number to `objects`; another
    thread may read them. end() ends each.

    Objects must be shared by many records, and small. Writing a number that has too many bits
    raises ValueError: drop() what is there of the record.
    """

    def __init__(
        self,
        read: Callable[[bytes, list[Any]], Iterable[tuple[int, Any]]],
        kept_ns: int,
        max_bytes: int = _MAX_BYTES,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        """read: the records that were written, each with when it ended. kept_ns: how long after its
        end a record may make way although there is room.
        """
        self.piece = BytesWriter()
        self.objects: list[Any] = []
        self._read = read
        self._kept_ns = kept_ns
        self._piece_bytes = piece_bytes
        self._max_pieces = max(1, max_bytes // piece_bytes)
        self._pieces: deque[Piece] = deque()
        # Of `piece`: the bytes of whole records, and when the last one ended.
        self._whole_bytes = 0
        self._ended_ns = 0
        self._lost_until_ns = 0
        # A piece ends while nobody reads.
        self._lock = threading.Lock()

    @property
    def lost_until_ns(self) -> int:
        """See AnyRing."""
        return self._lost_until_ns

    @property
    def last_ended_ns(self) -> int:
        """When the last record ended; 0: there was none."""
        return self._ended_ns

    def end(self, ended_ns: int) -> None:
        """What was written since the last call is a record, of what ended at this time."""
        self._ended_ns = ended_ns
        self._whole_bytes = len(self.piece)
        if self._whole_bytes >= self._piece_bytes:
            self._end_piece()

    def drop(self) -> None:
        """What was written since the last end() is no record."""
        self.piece.truncate(self._whole_bytes)

    def _end_piece(self) -> None:
        with self._lock:
            pieces = self._pieces
            pieces.append(Piece(self.piece.getvalue(), self.objects, self._ended_ns))
            # Emptied, it keeps its memory.
            self.piece.truncate(0)
            self.objects, self._whole_bytes = [], 0
            kept_from_ns = self._ended_ns - self._kept_ns
            while len(pieces) > self._max_pieces or pieces[0].ended_ns < kept_from_ns:
                self._lost_until_ns = pieces.popleft().ended_ns

    def since(self, from_ns: int) -> Iterator[Any]:
        """See AnyRing."""
        with self._lock:
            pieces = [each for each in self._pieces if each.ended_ns >= from_ns]
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
