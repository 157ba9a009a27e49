"""A queue that serves peers in turn: addresses one after the other, and so the connections of each.

Pure. A peer is named as in rpc.Call: host:port, or unix:path.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

from nereid.rpc.net.address import client_of

Item = TypeVar("Item")


class QueueFullError(Exception):
    """Too much is queued; the text says how much."""


class Ticket(Generic[Item]):
    """The place of an item in the queue."""

    __slots__ = ("address", "item", "peer", "size_bytes")

    def __init__(self, peer: str, size_bytes: int, item: Item) -> None:
        self.peer = peer
        self.address = client_of(peer)
        self.size_bytes = size_bytes
        self.item = item


class FairQueue(Generic[Item]):
    """At most max_bytes and max_items, of one address a half of each. A single item of an address
    may be larger than that.
    """

    def __init__(
        self, what: str = "items", max_items: float = math.inf, max_bytes: float = math.inf
    ) -> None:
        """what: is waiting, for the text of the error."""
        self._what = what
        self._max_items = max_items
        self._max_bytes = max_bytes
        # In the order in which they are served: addresses, connections, items.
        self._waiting: dict[str, dict[str, dict[Ticket[Item], None]]] = {}
        self._bytes_by_address: dict[str, int] = {}
        self._items_by_address: dict[str, int] = {}
        self.size_bytes = 0
        self._items = 0

    def __len__(self) -> int:
        return self._items

    def add(self, peer: str, size_bytes: int, item: Item) -> Ticket[Item]:
        """Queue an item behind the others of its peer.

        Raises:
            QueueFullError: too much is queued.
        """
        ticket = Ticket(peer, size_bytes, item)
        self._check_capacity(ticket)
        address = ticket.address
        self._waiting.setdefault(address, {}).setdefault(peer, {})[ticket] = None
        self._count(ticket, 1)
        return ticket

    def peek(self) -> Ticket[Item] | None:
        """The item that is served next, which stays queued."""
        for connections in self._waiting.values():
            for tickets in connections.values():
                return next(iter(tickets))
        return None

    def take(self) -> Item | None:
        """Remove the item that is served next; its peer is then served last."""
        ticket = self.peek()
        if ticket is None:
            return None
        address, peer = ticket.address, ticket.peer
        self.discard(ticket)
        connections = self._waiting.pop(address, None)
        if connections:
            tickets = connections.pop(peer, None)
            if tickets:
                connections[peer] = tickets
            self._waiting[address] = connections
        return ticket.item

    def discard(self, ticket: Ticket[Item]) -> None:
        """Remove an item, if it is still queued."""
        connections = self._waiting.get(ticket.address, {})
        tickets = connections.get(ticket.peer, {})
        if ticket not in tickets:
            return
        del tickets[ticket]
        self._count(ticket, -1)
        if not tickets:
            del connections[ticket.peer]
            if not connections:
                del self._waiting[ticket.address]

    def _check_capacity(self, ticket: Ticket[Item]) -> None:
        address, size_bytes = ticket.address, ticket.size_bytes
        items = self._items_by_address.get(address, 0)
        of_address = self._bytes_by_address.get(address, 0) + size_bytes
        if (
            self._items >= self._max_items
            or 2 * items >= self._max_items
            or (items and 2 * of_address > self._max_bytes)
            or (self._items and self.size_bytes + size_bytes > self._max_bytes)
        ):
            raise QueueFullError(
                f"Exceeds maximum queue size: {self._items} {self._what} of {self.size_bytes} bytes"
                " are waiting"
            )

    def _count(self, ticket: Ticket[Item], sign: int) -> None:
        self._items += sign
        self.size_bytes += sign * ticket.size_bytes
        address = ticket.address
        items = self._items_by_address.get(address, 0) + sign
        if items:
            self._items_by_address[address] = items
            of_address = self._bytes_by_address.get(address, 0) + sign * ticket.size_bytes
            self._bytes_by_address[address] = of_address
        else:
            del self._items_by_address[address]
            del self._bytes_by_address[address]
