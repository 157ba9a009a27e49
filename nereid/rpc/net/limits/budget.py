"""Budget of bytes held for clients: arriving requests, large pending ones, unread responses.

Bytes that are used within one read are not charged, so small requests cost nothing. A response is
never refused. While a client leaves too many bytes unread, it may not begin requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.rpc.net.limits.fair_shares import SHARED, may_have

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

# Arriving requests and unread responses may keep others from this share: neither slow senders nor
# slow readers keep out the small requests of others.
_HELD_SHARE: Final = 0.75

_TOO_MUCH: Final = (
    "too many bytes of unfinished requests and unread responses: {held} are held for {whom}, and at"
    " most {limit} may be"
)


class OverBudgetError(Exception):
    """Raised if bytes would exceed a limit; `shared` is True for the limit of all clients."""

    def __init__(self, message: str, *, shared: bool) -> None:
        super().__init__(message)
        self.message = message
        self.shared = shared


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """Limits in bytes; total_bytes is for all clients, and includes pending requests.

    A single request may exceed the limits for a client and for a connection.
    """

    total_bytes: int
    client_bytes: int
    connection_bytes: int


class ByteBudget:
    """Bytes held for all clients: arriving requests, and unread responses."""

    def __init__(self, limits: BudgetLimits, pending_bytes: Callable[[], int] = lambda: 0) -> None:
        """Create a budget; pending_bytes returns the bytes that other code counts as pending."""
        self.limits = limits
        self.largest_held_bytes = int(limits.total_bytes * _HELD_SHARE)
        # As long as no more is held and pending, clients need not share.
        self.uncontended_bytes = int(limits.total_bytes * (1 - SHARED))
        self.pending_bytes = pending_bytes
        self.held_bytes = self.unread_bytes = 0
        # Number of clients that have open accounts.
        self.clients = 0
        # Key: the name of a client that has open accounts.
        self._clients: dict[str, _Client] = {}

    def open_account(self, client: str) -> Account:
        """Open a connection's account; `client` comes from net.address.client_of.

        A client on a Unix socket has no name, so only its connection's limit applies.
        """
        owner = self._clients.get(client) if client else None
        if owner is None:
            owner = _Client(client)
            self.clients += 1
            if client:
                self._clients[client] = owner
        owner.accounts += 1
        return Account(self, owner)

    def may_add_pending(self, account: Account, size_bytes: int) -> bool:
        """Return whether a request of this size may become pending."""
        return self._may_add(account.client_bytes, self._free_bytes() - size_bytes)

    def may_add_arriving(self, client_bytes: int, size_bytes: int) -> bool:
        """Return whether bytes may arrive; with them, their client has client_bytes."""
        free_bytes = min(self.largest_held_bytes - self.held_bytes, self._free_bytes())
        return self._may_add(client_bytes, free_bytes - size_bytes)

    def _free_bytes(self) -> int:
        held_bytes = min(self.held_bytes + self.unread_bytes, self.largest_held_bytes)
        return self.limits.total_bytes - self.pending_bytes() - held_bytes

    def _may_add(self, client_bytes: int, free_bytes: int) -> bool:
        limit = self.limits.total_bytes
        return may_have(client_bytes, left=free_bytes, limit=limit, clients=self.clients)

    def forget(self, owner: _Client) -> None:
        """Forget a client whose last account was closed."""
        self.clients -= 1
        self._clients.pop(owner.name, None)


class _Client:
    """Bytes held for one client; held_bytes includes unread responses."""

    __slots__ = ("accounts", "held_bytes", "name", "unread_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held_bytes = self.unread_bytes = 0
        self.accounts = 0


class Account:
    """Bytes held for one connection: arriving requests, and unread responses."""

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
        """Key that all accounts of one client share, even if the client has no name."""
        return self._client

    @property
    def account(self) -> Account:
        """This account, so that an account can be used like an Owner."""
        return self

    @property
    def client_bytes(self) -> int:
        """Bytes held for the account's client on all its connections."""
        return self._client.held_bytes

    @property
    def limits(self) -> BudgetLimits:
        """Limits of the budget."""
        return self._budget.limits

    def charge(self, size_bytes: int, request_bytes: int = 0) -> None:
        """Charge bytes, or raise OverBudgetError and charge nothing.

        request_bytes are the bytes already charged for the same request.
        """
        budget, client = self._budget, self._client
        limits = budget.limits
        connection_bytes = self.held_bytes + size_bytes
        if connection_bytes > limits.connection_bytes and self.held_bytes > request_bytes:
            raise _over("this connection", self.held_bytes, limits.connection_bytes)
        client_bytes = client.held_bytes + size_bytes
        if client.name and client_bytes > limits.client_bytes and client.held_bytes > request_bytes:
            raise _over("this client", client.held_bytes, limits.client_bytes)
        if not budget.may_add_arriving(client_bytes, size_bytes):
            # A single arriving request may have all that is left.
            if budget.held_bytes > request_bytes:
                raise _over(
                    "all clients", budget.held_bytes, budget.largest_held_bytes, shared=True
                )
            all_bytes = budget.held_bytes + budget.unread_bytes + budget.pending_bytes()
            if all_bytes + size_bytes > limits.total_bytes:
                raise _over("all clients", all_bytes, limits.total_bytes, shared=True)
        self.held_bytes = connection_bytes
        client.held_bytes = client_bytes
        budget.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release bytes that were charged and are no longer held."""
        self.held_bytes -= size_bytes
        self._client.held_bytes -= size_bytes
        self._budget.held_bytes -= size_bytes

    def charge_pending(self, size_bytes: int) -> None:
        """Charge a pending request to its client, or raise OverBudgetError and charge nothing.

        The budget's pending_bytes() counts the request for all clients already. A single request
        may exceed the client's limit.
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
        """Raise OverBudgetError if the client leaves too many response bytes unread."""
        client, limit = self._client, self._budget.limits.client_bytes
        if client.name and client.unread_bytes > limit:
            raise _over("this client", client.held_bytes, limit)

    def close(self) -> None:
        """Close the account with its connection. Bytes still charged must be released later."""
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
        """This account: all clients without an account count as one."""
        return self

    @property
    def client_bytes(self) -> int:
        """Nothing, because nothing is counted."""
        return 0

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
    """Owner of a request, if it is not the connection's client."""

    owner: Hashable
    account: Account


def account_of(sender: Account | Owner | None) -> Account:
    """Return the account to charge for a request. Without a sender, nothing is counted."""
    return NO_ACCOUNT if sender is None else sender.account


def _over(whom: str, held: int, limit: int, *, shared: bool = False) -> OverBudgetError:
    return OverBudgetError(_TOO_MUCH.format(held=held, whom=whom, limit=limit), shared=shared)
