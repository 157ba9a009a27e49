"""Shares of clients in one model version's queue and instances, for fair refusals.

A client is InferRequest.sequence_owner: a principal, or an address. Requests without one have one
client in common.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid_scheduler.core.requests.entry import Entry


def rows_of(entry: Entry) -> int:
    """Return what an entry counts; without a batch dimension or any rows, as one."""
    return max(1, entry.valid.batch_size)


class _Client:
    """rows: of queued and executing entries. queued: in order; False for those to keep."""

    __slots__ = ("queued", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.queued: dict[Entry, bool] = {}


class ClientShares:
    """The clients that have any entries."""

    def __init__(self) -> None:
        self.queued_rows = 0
        self._clients: dict[str, _Client] = {}
        # Entries that were queued although they would miss the target.
        self._overdue: set[Entry] = set()

    def add(self, entry: Entry, *, is_kept: bool = False, exceeds_target: bool = False) -> None:
        """Count an entry that was queued. A kept one is never refused in place of another."""
        name, rows = entry.request.sequence_owner, rows_of(entry)
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client()
        client.rows += rows
        self.queued_rows += rows
        client.queued[entry] = not is_kept
        if exceeds_target:
            self._overdue.add(entry)

    def begin(self, entries: Iterable[Entry]) -> None:
        """Record that an instance gets these queued entries."""
        clients = self._clients
        for entry in entries:
            del clients[entry.request.sequence_owner].queued[entry]
            self.queued_rows -= rows_of(entry)

    def remove(self, entry: Entry) -> None:
        """Forget an entry that has ended, or that no instance has any more."""
        name, rows = entry.request.sequence_owner, rows_of(entry)
        client = self._clients[name]
        client.rows -= rows
        if client.queued.pop(entry, None) is not None:
            self.queued_rows -= rows
        self._overdue.discard(entry)
        if client.rows <= 0:
            del self._clients[name]

    def exceeds_target(self, entry: Entry) -> bool:
        """Return whether an entry was queued although it would miss the target."""
        return entry in self._overdue

    def displaced_by(self, entry: Entry, capacity_rows: float) -> list[Entry] | None:
        """Return the queued entries to refuse in place of a new one; `None` to refuse the new one.

        The client with the most rows loses its newest entries to a client that has fewer, even with
        the new one. If an instance has them already, the new entry is queued without that as long
        as its client has no more than an equal share of capacity_rows, for which there is time.
        """
        clients, rows = self._clients, rows_of(entry)
        own = clients.get(entry.request.sequence_owner)
        count = len(clients) + (own is None)
        if count == 1:
            return None
        own_rows = rows + (0 if own is None else own.rows)
        largest = max(clients.values(), key=_total_rows)
        over = largest.rows - own_rows
        displaced: list[Entry] = []
        for queued, may_be_refused in reversed(largest.queued.items()):
            if rows <= 0 or over <= 0:
                break
            # Less urgent ones are not in front of it.
            if may_be_refused and queued.level <= entry.level:
                displaced.append(queued)
                rows -= rows_of(queued)
                over -= rows_of(queued)
        return displaced if rows <= 0 or own_rows <= capacity_rows / count else None

    def last_entries(self, count: int, capacity_rows: float) -> list[Entry]:
        """Return up to `count` entries to refuse, each of the client that has most rows by then.

        Of a client they are the least urgent, and of these the newest. A client beside others keeps
        an equal share of capacity_rows.
        """
        share = capacity_rows / len(self._clients) if len(self._clients) > 1 else 0.0
        heap = [
            (-client.rows, number, sorted(_refusable(client), key=_level_of))
            for number, client in enumerate(self._clients.values())
        ]
        heapify(heap)
        last: list[Entry] = []
        while heap and len(last) < count:
            rows, number, queued = heap[0]
            if queued and -rows > share:
                last.append(queued.pop())
                heapreplace(heap, (rows + rows_of(last[-1]), number, queued))
            else:
                heappop(heap)
        return last


def _refusable(client: _Client) -> list[Entry]:
    return [entry for entry, may_be_refused in client.queued.items() if may_be_refused]


def _total_rows(client: _Client) -> int:
    return client.rows


def _level_of(entry: Entry) -> int:
    return entry.level
