"""Containers for a batcher's entries: queues for each priority level, and a heap of expiry times.

A discarded entry stays in its deque as a *dead slot*, so that cancelling is O(1).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heappop, heappush
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Final

from nereid.core.errors import DeadlineExceeded, Unavailable

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Iterator, Sequence

    from nereid_scheduler.core.requests.entry import Entry

# Dead slots and stale expiry times are removed once there are more than this many.
_SLACK: Final = 64
# Maximum number of entries that a search for one shape passes over.
_MAX_PASSED: Final = 256


def request_prefix(request_id: str) -> str:
    """Return the beginning of an error text about a request, as Triton's core writes it."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def queue_full(entry: Entry) -> Unavailable:
    """Return Triton's error of a request whose queue is full."""
    return Unavailable(f"{request_prefix(entry.request.request_id)}Exceeds maximum queue size")


def timeout_expired() -> Unavailable:
    """Return Triton's error of a request past its queue timeout."""
    return Unavailable("Request timeout expired", accepted=True)


def deadline_passed(model_name: str) -> DeadlineExceeded:
    """Return the error of a queued request that is past its client's deadline."""
    return DeadlineExceeded(
        f"deadline exceeded while the request was queued for model '{model_name}'", accepted=True
    )


class Fifo:
    """Entries of one rank in order of arrival. Never add a discarded entry to the same Fifo again.

    rank: 2 * level, or 2 * level + 1 after a DELAY. live: number of entries without dead slots.
    """

    __slots__ = ("items", "live", "rank")

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.items: deque[Entry] = deque()
        self.live = 0

    def append(self, entry: Entry) -> None:
        """Queue an entry at the end."""
        entry.holder = self
        self.items.append(entry)
        self.live += 1

    def prepend(self, entries: Sequence[Entry]) -> None:
        """Insert entries at the front, in this order."""
        for entry in entries:
            entry.holder = self
        self.items.extendleft(reversed(entries))
        self.live += len(entries)

    def discard(self, entry: Entry) -> None:
        """Remove an entry in O(1); a dead slot stays in the deque."""
        entry.holder = None
        self.live -= 1
        if not self.live:
            # Dead slots would keep tensors in memory until the next request.
            self.items.clear()
        elif len(self.items) > 2 * self.live + _SLACK:
            self.items = deque(item for item in self.items if item.holder is self)

    def extract(self, entry: Entry) -> None:
        """Remove an entry in O(n) without a dead slot, so that it may be queued here again."""
        entry.holder = None
        self.live -= 1
        self.items.remove(entry)

    def extract_all(self, entries: Container[Entry], count: int) -> None:
        """Remove `count` entries without dead slots, so that they may be queued here again."""
        passed: list[Entry] = []
        items = self.items
        self.live -= count
        while count:
            entry = items.popleft()
            if entry.holder is not self:
                continue
            if entry in entries:
                count -= 1
            else:
                passed.append(entry)
        items.extendleft(reversed(passed))
        if not self.live:
            items.clear()

    def extract_alike(self, key: Hashable, rows: int, most: int) -> list[Entry]:
        """Remove and return the oldest entries with this key, up to limits of entries and rows."""
        alike: list[Entry] = []
        passed: list[Entry] = []
        items = self.items
        while items and len(alike) < most and len(passed) < _MAX_PASSED:
            entry = items.popleft()
            if entry.holder is not self:
                continue
            if entry.key != key:
                passed.append(entry)
                continue
            rows -= entry.valid.batch_size
            if rows < 0:
                passed.append(entry)
                break
            alike.append(entry)
        items.extendleft(reversed(passed))
        self.live -= len(alike)
        if not self.live:
            items.clear()
        return alike

    def oldest(self) -> Iterator[Entry]:
        """Return an iterator over the entries, the oldest first."""
        return (entry for entry in self.items if entry.holder is self)

    def newest(self) -> Iterator[Entry]:
        """Return an iterator over the entries, the newest first."""
        return (entry for entry in reversed(self.items) if entry.holder is self)

    def pop(self, limit: int) -> list[Entry]:
        """Remove and return the oldest entries, at most `limit`."""
        items = self.items
        # For one entry this takes three times as long as popleft().
        if limit >= self.live == len(items) > 1:
            entries = list(items)
            items.clear()
        else:
            entries = []
            limit = min(limit, self.live)
            while len(entries) < limit:
                entry = items.popleft()
                if entry.holder is self:
                    entries.append(entry)
        self.live -= len(entries)
        return entries


class PriorityQueues:
    """Queues of all priority levels; behind each is a queue for the level's delayed entries.

    Call `rewind` after an entry has left, or has come before one that was scanned.
    """

    __slots__ = ("_by_rank", "_fifos", "_index", "_slot")

    def __init__(self) -> None:
        self._by_rank: dict[int, Fifo] = {}
        self._fifos: list[Fifo] = []
        # Where the scan goes on: the index of the queue, and the slot in that queue.
        self._index = 0
        self._slot = 0

    def append(self, entry: Entry) -> bool:
        """Queue an entry at the end of its level; return False if the scan has passed its place."""
        rank = 2 * entry.level
        fifos = self._fifos
        if len(fifos) == 1 and fifos[0].rank == rank:
            fifos[0].append(entry)
            return True
        in_front = bool(fifos) and rank < fifos[self._index].rank
        (self._by_rank.get(rank) or self._open(rank)).append(entry)
        return not in_front

    def delay(self, entry: Entry) -> None:
        """Move a queued entry behind all entries of the same level that were not delayed."""
        self._by_rank[2 * entry.level].extract(entry)
        rank = 2 * entry.level + 1
        (self._by_rank.get(rank) or self._open(rank)).append(entry)

    def prepend(self, entries: Iterable[Entry]) -> None:
        """Insert each entry at the front of its level; entries of one level keep this order."""
        by_level: dict[int, list[Entry]] = {}
        for entry in entries:
            by_level.setdefault(entry.level, []).append(entry)
        for level, group in by_level.items():
            (self._by_rank.get(2 * level) or self._open(2 * level)).prepend(group)

    def count(self, level: int) -> int:
        """Return the number of entries in a level, delayed ones included."""
        fresh = self._by_rank.get(2 * level)
        delayed = self._by_rank.get(2 * level + 1)
        return (fresh.live if fresh else 0) + (delayed.live if delayed else 0)

    def count_ahead(self, level: int) -> int:
        """Return how many entries would be ahead of a new entry of this level."""
        last = 2 * level + 1
        return sum(fifo.live for fifo in self._fifos if fifo.rank <= last)

    def last(self) -> Iterator[Entry]:
        """Return an iterator over all entries, from the last one in the queues to the first."""
        return chain.from_iterable(fifo.newest() for fifo in reversed(self._fifos))

    def scan(self) -> Iterator[Entry]:
        """Yield the entries that no scan has passed. Asking for the next one passes an entry."""
        while self._fifos:
            fifo = self._fifos[self._index]
            # Most scans pass one entry: an iterator would cost more than the indices.
            while self._slot < len(fifo.items):
                entry = fifo.items[self._slot]
                if entry.holder is fifo:
                    yield entry
                self._slot += 1
            if self._index == len(self._fifos) - 1:
                return
            self._index += 1
            self._slot = 0

    def rewind(self) -> None:
        """Let the next scan begin at the first entry."""
        self._index = self._slot = 0

    def pop(self, limit: int) -> list[Entry]:
        """Remove and return the first `limit` entries, in scan order; there must be that many."""
        fifos = self._fifos
        entries = fifos[0].pop(limit)
        while len(entries) < limit:
            # Drop the empty queue, as a model may have many levels.
            del self._by_rank[fifos.pop(0).rank]
            entries.extend(fifos[0].pop(limit - len(entries)))
        return entries

    def oldest(self, limit: int) -> Iterator[list[Entry]]:
        """Yield the first entries of each queue that is not empty, at most `limit` of all."""
        for fifo in self._fifos:
            if not limit:
                return
            if fifo.live:
                entries = list(islice(fifo.oldest(), limit))
                limit -= len(entries)
                yield entries

    def extract_all(self, entries: Iterable[Entry]) -> None:
        """Remove these entries, all of which are queued."""
        by_fifo: dict[Fifo, dict[Entry, None]] = {}
        for entry in entries:
            by_fifo.setdefault(entry.holder, {})[entry] = None
        for fifo, alike in by_fifo.items():
            fifo.extract_all(alike, len(alike))
            if not fifo.live:
                self._fifos.remove(fifo)
                del self._by_rank[fifo.rank]

    def extract_alike(self, key: Hashable, rows: int, most: int) -> list[Entry]:
        """Remove and return entries with this key from the first queue that is not empty."""
        first = next((fifo for fifo in self._fifos if fifo.live), None)
        return [] if first is None else first.extract_alike(key, rows, most)

    def _open(self, rank: int) -> Fifo:
        fifo = self._by_rank[rank] = Fifo(rank)
        insort(self._fifos, fifo, key=lambda item: item.rank)
        return fifo


class Expiries:
    """Timeouts and deadlines of queued entries, the earliest first."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._order = count()

    def push(self, entry: Entry, pending: int) -> None:
        """Add an entry's timeout and deadline. pending: number of entries in the batcher."""
        if entry.timeout_ns is None and entry.deadline_ns is None:
            return
        if len(self._heap) > 4 * pending + _SLACK:
            self._drop_stale()
        self._watch(entry)

    def next_ns(self) -> int | None:
        """Return a time not after the next timeout or deadline; `None` if there is none."""
        heap = self._heap
        while heap and heap[0][2].holder is None:
            # The heap would keep the tensors of an entry that has left the queue.
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ns: int) -> list[Entry]:
        """Return the queued entries that are past their timeout or deadline, the earliest first."""
        heap = self._heap
        expired: dict[Entry, None] = {}
        while heap and heap[0][0] <= now_ns:
            entry = heappop(heap)[2]
            if entry.holder is not None:
                expired[entry] = None
        return list(expired)

    def _watch(self, entry: Entry) -> None:
        if entry.timeout_ns is not None:
            heappush(self._heap, (entry.timeout_ns, next(self._order), entry))
        if entry.deadline_ns is not None:
            heappush(self._heap, (entry.deadline_ns, next(self._order), entry))

    def _drop_stale(self) -> None:
        # The heap would keep the tensors of these entries until their deadlines.
        held = dict.fromkeys(item[2] for item in self._heap if item[2].holder is not None)
        self._heap.clear()
        for entry in held:
            self._watch(entry)
