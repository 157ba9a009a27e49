"""Owners of sequences: texts that a gateway adds to requests with a correlation id.

A principal's sequences are its own: another principal's sequence of the same id is a different one.
Addresses share their sequences, since a client may come from several, and several clients from one:
an address only decides whose turn it is, and who has how many.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.correlation_ids import CorrelationId

# Parameter of the requests that have an owner.
SEQUENCE_ID: Final = "sequence_id"
_PRINCIPAL, _LIMITED_ADDRESS, _ADDRESS = "p", "a", "t"
_DIGEST_BYTES: Final = 12


def principal_owner(*identity: str) -> str:
    """Return the owner for the principal that these texts identify.

    The owner reveals nothing of the texts.
    """
    text = "\0".join(identity).encode("utf-8", "surrogatepass")
    return _PRINCIPAL + blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def address_owner(client: str, *, limited: bool) -> str:
    """Return the owner for the client behind an address (net.address.client_of).

    limited: whether the client may have only its share of a model's slots.
    """
    return (_LIMITED_ADDRESS if limited else _ADDRESS) + client


def is_principal(owner: str) -> bool:
    """Return whether the owner is a principal, rather than an address or nobody."""
    return owner.startswith(_PRINCIPAL)


def is_limited(owner: str) -> bool:
    """Return whether the owner may have only its share of a model's slots."""
    return owner.startswith((_PRINCIPAL, _LIMITED_ADDRESS))


def other_id(correlation_id: CorrelationId, owner: str) -> CorrelationId:
    """Return the id that a model sees in place of a correlation id of another principal's sequence.

    The id is of the same kind, and this owner's alone.
    """
    text = f"{owner} {correlation_id!r}".encode("utf-8", "surrogatepass")
    digest = blake2b(text, digest_size=_DIGEST_BYTES)
    if isinstance(correlation_id, str):
        return digest.hexdigest()
    # The result is positive in the protocols' signed fields, and not 0.
    return int.from_bytes(digest.digest()[:8]) >> 1 | 1


def sequence_key(correlation_id: CorrelationId, owner: str) -> Hashable:
    """Return the key by which a model version knows a sequence."""
    return (owner, correlation_id) if is_principal(owner) else correlation_id
