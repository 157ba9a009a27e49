"""Budget of bytes that are held for clients.

These are the bytes of requests while the requests arrive and, if they are large, while they are
pending. They are also the bytes of responses that clients have not read.

Bytes are charged when they are kept. They are released when they are dropped. They are also
released when the request has been passed to other code, which counts the bytes from then on. Bytes
that are received and used within one read are not charged, so small requests cost nothing. The
bytes of a response are counted, but a response is never refused. While a client leaves too many
bytes of responses unread, it may not begin new requests. The module does no I/O and does not depend
on a protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

# Share of the limit for all clients that arriving requests may use. The rest is for requests that
# have arrived, so that slow senders cannot keep out fast ones.
_ARRIVING_SHARE: Final = 0.75

_TOO_MUCH: Final = (
    "too many bytes of unfinished requests and unread responses: {held} are held for {whom}, and at"
    " most {limit} may be"
)


class OverBudgetError(Exception):
    """Raised if bytes would exceed a limit.

    shared: whether the limit is the one for all clients together.
    """

    def __init__(self, message: str, *, shared: bool) -> None:
        super().__init__(message)
        self.message = message
        self.shared = shared


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """Limits in bytes.

    total_bytes: limit for all clients together, including pending requests.
    client_bytes, connection_bytes: limits for one client and for one connection. A single request
        may exceed them.
    """

    total_bytes: int
    client_bytes: int
    connection_bytes: int


class ByteBudget:
    """Bytes held for all clients.

    held_bytes: bytes of arriving requests.
    unread_bytes: bytes of responses.
    """

    def __init__(self, limits: BudgetLimits, pending_bytes: Callable[[], int] = lambda: 0) -> None:
        """Create a budget.

        pending_bytes: function that returns the bytes of pending requests, which other code counts.
        """
        self.limits = limits
        self.largest_held_bytes = int(limits.total_bytes * _ARRIVING_SHARE)
        self.pending_bytes = pending_bytes
        self.held_bytes = self.unread_bytes = 0
        # Maps a name to the client, for clients that have open accounts.
        self._clients: dict[str, _Client] = {}

    @property
    def clients(self) -> int:
        """Number of clients that have open accounts."""
        return len(self._clients)

    def open_account(self, client: str) -> Account:
        """Open the account of a new connection.

        client: name of the client, from net.address.client_of. A client on a Unix socket has no
            name, and only the limit of its connection applies.
        """
        owner = self._clients.get(client) if client else None
        if owner is None:
            owner = _Client(client)
            if client:
                self._clients[client] = owner
        owner.accounts += 1
        return Account(self, owner)

    def may_add_pending(self, size_bytes: int) -> bool:
        """Return whether a request of this size may become pending."""
        held_bytes = min(self.held_bytes, self.largest_held_bytes) + self.unread_bytes
        return self.pending_bytes() + held_bytes + size_bytes <= self.limits.total_bytes

    def forget(self, owner: _Client) -> None:
        """Forget a client whose last account was closed."""
        self._clients.pop(owner.name, None)


class _Client:
    """Bytes held for one client on all of its connections.

    held_bytes: bytes of requests and of responses.
    unread_bytes: bytes of responses only.
    """

    __slots__ = ("accounts", "held_bytes", "name", "unread_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held_bytes = self.unread_bytes = 0
        self.accounts = 0


class Account:
    """Bytes held for one connection.

    held_bytes: bytes of arriving requests.
    unread_bytes: bytes of responses.
    """

    __slots__ = ("_budget", "_client", "_closed", "held_bytes", "unread_bytes")

    def __init__(self, budget: ByteBudget, client: _Client) -> None:
        self.held_bytes = self.unread_bytes = 0
        self._budget = budget
        self._client = client
        self._closed = False

    @property
    def client(self) -> str:
        """Name of the account's client (net.address.client_of)."""
        return self._client.name

    @property
    def owner(self) -> Hashable:
        """Key that all accounts of one client have in common; even a nameless client has a key."""
        return self._client

    @property
    def account(self) -> Account:
        """This account itself. With this property, accounts can be used like an Owner."""
        return self

    @property
    def limits(self) -> BudgetLimits:
        """Limits of the budget."""
        return self._budget.limits

    def charge(self, size_bytes: int, request_bytes: int = 0) -> None:
        """Charge bytes to the connection, its client and the budget.

        request_bytes: bytes that have already been charged for the same request.

        Raises:
            OverBudgetError: a limit would be exceeded; nothing is charged.
        """
        budget, client = self._budget, self._client
        limits = budget.limits
        connection_bytes = self.held_bytes + size_bytes
        if connection_bytes > limits.connection_bytes and self.held_bytes > request_bytes:
            raise _over("this connection", self.held_bytes, limits.connection_bytes)
        client_bytes = client.held_bytes + size_bytes
        if client.name and client_bytes > limits.client_bytes and client.held_bytes > request_bytes:
            raise _over("this client", client.held_bytes, limits.client_bytes)
        all_bytes = budget.held_bytes + size_bytes
        if all_bytes > budget.largest_held_bytes and budget.held_bytes > request_bytes:
            raise _over("all clients", budget.held_bytes, budget.largest_held_bytes, shared=True)
        total_bytes = budget.held_bytes + budget.unread_bytes + budget.pending_bytes()
        if total_bytes + size_bytes > limits.total_bytes:
            raise _over("all clients", total_bytes, limits.total_bytes, shared=True)
        self.held_bytes = connection_bytes
        client.held_bytes = client_bytes
        budget.held_bytes = all_bytes

    def release(self, size_bytes: int) -> None:
        """Release bytes that were charged and are no longer held."""
        self.held_bytes -= size_bytes
        self._client.held_bytes -= size_bytes
        self._budget.held_bytes -= size_bytes

    def charge_pending(self, size_bytes: int) -> None:
        """Charge the client for a large request while the request is pending.

        The bytes count only against the limit of the client. The limit for all clients already
        includes them, because pending_bytes() of the budget returns the bytes of all pending
        requests. A single request may exceed the client's limit.

        Raises:
            OverBudgetError: the client's limit would be exceeded; nothing is charged.
        """
        client, limit = self._client, self._budget.limits.client_bytes
        if client.name and client.held_bytes and client.held_bytes + size_bytes > limit:
            raise _over("this client", client.held_bytes, limit)
        client.held_bytes += size_bytes

    def release_pending(self, size_bytes: int) -> None:
        """Release bytes charged by charge_pending(), because the request is no longer pending."""
        self._client.held_bytes -= size_bytes

    def set_unread(self, size_bytes: int) -> None:
        """Set the number of response bytes that the client has not read on this connection."""
        change = size_bytes - self.unread_bytes
        if self._closed or not change:
            return
        self.unread_bytes = size_bytes
        self._client.unread_bytes += change
        self._client.held_bytes += change
        self._budget.unread_bytes += change

    def check_unread(self) -> None:
        """Check that the client has read enough of its responses to begin something new.

        Raises:
            OverBudgetError: the client leaves too many bytes unread.
        """
        client, limit = self._client, self._budget.limits.client_bytes
        if client.name and client.unread_bytes > limit:
            raise _over("this client", client.held_bytes, limit)

    def close(self) -> None:
        """Close the account with its connection.

        Bytes that are still charged must be released later.
        """
        if not self._closed:
            self.set_unread(0)
            self._closed = True
            self._client.accounts -= 1
            if not self._client.accounts:
                self._budget.forget(self._client)


class NoAccount(Account):
    """Account for clients whose bytes are not counted."""

    __slots__ = ()

    def __init__(self) -> None:
        self.held_bytes = self.unread_bytes = 0

    @property
    def client(self) -> str:
        """Empty text, because the client has no name."""
        return ""

    @property
    def owner(self) -> Hashable:
        """This account, because all clients without an account count as one."""
        return self

    def charge(self, size_bytes: int, request_bytes: int = 0) -> None:
        """Count nothing."""

    def release(self, size_bytes: int) -> None:
        """Release nothing."""

    def charge_pending(self, size_bytes: int) -> None:
        """Count nothing."""

    def release_pending(self, size_bytes: int) -> None:
        """Release nothing."""

    def set_unread(self, size_bytes: int) -> None:
        """Count nothing."""

    def check_unread(self) -> None:
        """Refuse nothing."""

    def close(self) -> None:
        """Forget nothing."""


NO_ACCOUNT: Final = NoAccount()


class Owner(NamedTuple):
    """Owner of a request, if the owner is not the client of the connection.

    account: account of the connection on which the request arrived.
    """

    owner: Hashable
    account: Account


def account_of(sender: Account | Owner | None) -> Account:
    """Return the account to charge for a request of a sender.

    If there is no sender, no client sent the request, and the bytes are not counted.
    """
    return NO_ACCOUNT if sender is None else sender.account


def _over(whom: str, held: int, limit: int, *, shared: bool = False) -> OverBudgetError:
    return OverBudgetError(_TOO_MUCH.format(held=held, whom=whom, limit=limit), shared=shared)
