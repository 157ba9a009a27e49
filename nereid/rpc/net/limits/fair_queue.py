"""A queue that serves clients in turn, and the connections of each client in turn.

Pure. A peer is named as in rpc.Call: host:port, or unix:path. Its client is its address, unless the
caller that adds an item gives another one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

from nereid.rpc.net.address import client_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Item = TypeVar("Item")


class QueueFullError(Exception):
    """Too much is queued; the text says how much."""


class Ticket(Generic[Item]):
    """Place of an item in the queue."""

    __slots__ = ("client", "item", "peer", "size_bytes")

    def __init__(self, peer: str, size_bytes: int, item: Item, client: Hashable = None) -> None:
        self.peer = peer
        self.client = client_of(peer) if client is None else client
        self.size_bytes = size_bytes
        self.item = item


class FairQueue(Generic[Item]):
    """Queue of at most `max_bytes` and `max_items`, with half of each for one client.

    A single item of a client may be larger than that.
    """

    def __init__(
        self, what: str = "items", max_items: float = math.inf, max_bytes: float = math.inf
    ) -> None:
        """Create a queue; `what` names the waiting items, for the text of the error."""
        self._what = what
        self._max_items = max_items
        self._max_bytes = max_bytes
        # Clients, their connections and their items, each in the order of service.
        self._waiting: dict[Hashable, dict[str, dict[Ticket[Item], None]]] = {}
        self._bytes_by_client: dict[Hashable, int] = {}
        self._items_by_client: dict[Hashable, int] = {}
        self.size_bytes = 0
        self._items = 0

    def __len__(self) -> int:
        return self._items

    def add(self, peer: str, size_bytes: int, item: Item, client: Hashable = None) -> Ticket[Item]:
        """Queue an item behind the others of its peer.

        client: client to count the item for, instead of the peer's address.

        Raises:
            QueueFullError: too much is queued.
        """
        ticket = Ticket(peer, size_bytes, item, client)
        self._check_capacity(ticket)
        client = ticket.client
        self._waiting.setdefault(client, {}).setdefault(peer, {})[ticket] = None
        self._count(ticket, 1)
        return ticket

    def peek(self, may_serve: Callable[[Hashable], bool] | None = None) -> Ticket[Item] | None:
        """Return the item that is served next, without removing it.

        may_serve: returns whether a client may be served now; others are skipped.
        """
        for client, connections in self._waiting.items():
            if may_serve is None or may_serve(client):
                for tickets in connections.values():
                    return next(iter(tickets))
        return None

    def take(self) -> Item | None:
        """Remove and return the item that is served next; its peer is then served last."""
        ticket = self.peek()
        return None if ticket is None else self.take_ticket(ticket)

    def take_ticket(self, ticket: Ticket[Item]) -> Item:
        """Remove and return a queued item; its peer is then served last."""
        client, peer = ticket.client, ticket.peer
        self.discard(ticket)
        connections = self._waiting.pop(client, None)
        if connections:
            tickets = connections.pop(peer, None)
            if tickets:
                connections[peer] = tickets
            self._waiting[client] = connections
        return ticket.item

    def discard(self, ticket: Ticket[Item]) -> None:
        """Remove an item, if it is still queued."""
        connections = self._waiting.get(ticket.client, {})
        tickets = connections.get(ticket.peer, {})
        if ticket not in tickets:
            return
        del tickets[ticket]
        self._count(ticket, -1)
        if not tickets:
            del connections[ticket.peer]
            if not connections:
                del self._waiting[ticket.client]

    def _check_capacity(self, ticket: Ticket[Item]) -> None:
        client, size_bytes = ticket.client, ticket.size_bytes
        items = self._items_by_client.get(client, 0)
        of_client = self._bytes_by_client.get(client, 0) + size_bytes
        if (
            self._items >= self._max_items
            or 2 * items >= self._max_items
            or (items and 2 * of_client > self._max_bytes)
            or (self._items and self.size_bytes + size_bytes > self._max_bytes)
        ):
            raise QueueFullError(
                f"Exceeds maximum queue size: {self._items} {self._what} of {self.size_bytes} bytes"
                " are waiting"
            )

    def _count(self, ticket: Ticket[Item], sign: int) -> None:
        self._items += sign
        self.size_bytes += sign * ticket.size_bytes
        client = ticket.client
        items = self._items_by_client.get(client, 0) + sign
        if items:
            self._items_by_client[client] = items
            of_client = self._bytes_by_client.get(client, 0) + sign * ticket.size_bytes
            self._bytes_by_client[client] = of_client
        else:
            del self._items_by_client[client]
            del self._bytes_by_client[client]
