"""Owners of sequences, derived from the sender of a request with a correlation id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.sequence_owners import address_owner
from nereid.rpc.net.limits.budget import NO_ACCOUNT, account_of
from nereid_gateway.core.access.principal import principal_of

if TYPE_CHECKING:
    from nereid.rpc.net.limits.budget import Account, Owner


def sequence_owner(sender: Account | Owner | None, *, limits_addresses: bool) -> str:
    """Return InferRequest.sequence_owner for a sender.

    limits_addresses: True if an address without credentials may have only its share of a model's
    slots.
    """
    principal = principal_of(sender)
    if principal is not None and principal.sequence_owner:
        return principal.sequence_owner
    account = account_of(sender)
    if account is NO_ACCOUNT:
        return ""
    return address_owner(account.client, limited=limits_addresses and principal is None)
