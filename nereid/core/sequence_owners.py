"""Owners of sequences: texts that a gateway adds to requests that have a correlation id.

Each principal has its own sequences: if two principals use the same id, they have two different
sequences. Clients without a principal share one set of ids, because a client may use several
addresses, and several clients may use one address. An address therefore does not separate
sequences. It only serves to limit a client's share of a model's slots, and to let clients take
turns.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.correlation_ids import CorrelationId

# Request parameter that holds the correlation id. Only a request with this parameter has an owner.
SEQUENCE_ID: Final = "sequence_id"
_PRINCIPAL, _LIMITED_ADDRESS, _ADDRESS = "p", "a", "t"
_DIGEST_BYTES: Final = 12


def principal_owner(*identity: str) -> str:
    """Return the owner for the principal that these texts identify.

    The texts cannot be recovered from the owner.
    """
    text = "\0".join(identity).encode("utf-8", "surrogatepass")
    return _PRINCIPAL + blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def address_owner(client: str, *, limited: bool) -> str:
    """Return the owner for a client that is known by its address only.

    client: name of the client, as net.address.client_of returns it.
    limited: whether the client may have only its share of a model's slots.
    """
    return (_LIMITED_ADDRESS if limited else _ADDRESS) + client


def is_principal(owner: str) -> bool:
    """Return whether the owner is a principal; false for an address, and for the empty text."""
    return owner.startswith(_PRINCIPAL)


def is_limited(owner: str) -> bool:
    """Return whether the owner may have only its share of a model's slots."""
    return owner.startswith((_PRINCIPAL, _LIMITED_ADDRESS))


def other_id(correlation_id: CorrelationId, owner: str) -> CorrelationId:
    """Return the id to show to a model if another owner's sequence has the same correlation id.

    The result has the type of the correlation id (text or number). Each owner gets a different
    result.
    """
    text = f"{owner} {correlation_id!r}".encode("utf-8", "surrogatepass")
    digest = blake2b(text, digest_size=_DIGEST_BYTES)
    if isinstance(correlation_id, str):
        return digest.hexdigest()
    # The result is a positive number that fits the signed fields of the protocols.
    return int.from_bytes(digest.digest()[:8]) >> 1 | 1


def sequence_key(correlation_id: CorrelationId, owner: str) -> Hashable:
    """Return the key that identifies a sequence within a model version."""
    return (owner, correlation_id) if is_principal(owner) else correlation_id
