"""Queue that serves clients in turn, and the connections of each client in turn.

A peer is host:port or unix:path. Its client is net.address.client_of(peer) by default.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

from nereid.rpc.net.address import client_of
from nereid.rpc.net.limits.fair_shares import may_have

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Item = TypeVar("Item")


class QueueFullError(Exception):
    """Raised if the queue is full. The text says how much is queued."""


class Ticket(Generic[Item]):
    """Place of an item in the queue."""

    __slots__ = ("client", "item", "peer", "size_bytes")

    def __init__(self, peer: str, size_bytes: int, item: Item, client: Hashable = None) -> None:
        self.peer = peer
        self.client = client_of(peer) if client is None else client
        self.size_bytes = size_bytes
        self.item = item


class FairQueue(Generic[Item]):
    """Queue of limited size, whose last part clients share (fair_shares).

    A client may use half of each limit; a single item may exceed that.
    """

    def __init__(
        self, what: str = "items", max_items: float = math.inf, max_bytes: float = math.inf
    ) -> None:
        """Create a queue; `what` names the items in the error's text."""
        self._what = what
        self._max_items = max_items
        self._max_bytes = max_bytes
        # Client -> peer -> tickets, all in the order of service.
        self._waiting: dict[Hashable, dict[str, dict[Ticket[Item], None]]] = {}
        self._bytes_by_client: dict[Hashable, int] = {}
        self._items_by_client: dict[Hashable, int] = {}
        self.size_bytes = 0
        self._items = 0

    def __len__(self) -> int:
        return self._items

    def add(self, peer: str, size_bytes: int, item: Item, client: Hashable = None) -> Ticket[Item]:
        """Queue an item behind others of its peer; raise QueueFullError.

        `client` replaces the client at the peer's address.
        """
        ticket = Ticket(peer, size_bytes, item, client)
        self._check_capacity(ticket)
        client = ticket.client
        self._waiting.setdefault(client, {}).setdefault(peer, {})[ticket] = None
        self._count(ticket, 1)
        return ticket

    def peek(self, may_serve: Callable[[Hashable], bool] | None = None) -> Ticket[Item] | None:
        """Return the next ticket without removing it; skip clients that `may_serve` refuses."""
        for client, connections in self._waiting.items():
            if may_serve is None or may_serve(client):
                for tickets in connections.values():
                    return next(iter(tickets))
        return None

    def take(self) -> Item | None:
        """Remove and return the next item. The item's client and peer move to the end."""
        ticket = self.peek()
        return None if ticket is None else self.take_ticket(ticket)

    def take_ticket(self, ticket: Ticket[Item]) -> Item:
        """Remove and return a queued item. The item's client and peer move to the end."""
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
        """Remove an item if it is still queued."""
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
            2 * items >= self._max_items
            or (items and 2 * of_client > self._max_bytes)
            or (self._items and not self._leaves_shares(items + 1, of_client, ticket.size_bytes))
        ):
            raise QueueFullError(
                f"Exceeds maximum queue size: {self._items} {self._what} of {self.size_bytes} bytes"
                " are waiting"
            )

    def _leaves_shares(self, items: int, of_client: int, size_bytes: int) -> bool:
        """Return whether a client with so many items and bytes leaves others their shares."""
        clients = len(self._items_by_client) + (items == 1)
        return may_have(
            items, left=self._max_items - self._items - 1, limit=self._max_items, clients=clients
        ) and may_have(
            of_client,
            left=self._max_bytes - self.size_bytes - size_bytes,
            limit=self._max_bytes,
            clients=clients,
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
