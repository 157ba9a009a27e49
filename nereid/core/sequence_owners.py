"""Whose sequences are whose: texts that a gateway adds to requests with a correlation id.

A principal's sequences are its own: another principal's of the same id are others. Addresses share
theirs, since a client may come from several, and several clients from one: an address only says
whose turn it is, and who has how many.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.correlation_ids import CorrelationId

# Which requests have one: those with this parameter.
SEQUENCE_ID: Final = "sequence_id"
_PRINCIPAL, _LIMITED_ADDRESS, _ADDRESS = "p", "a", "t"
_DIGEST_BYTES: Final = 12


def principal_owner(*identity: str) -> str:
    """Of the principal that these texts identify. Says nothing of them."""
    text = "\0".join(identity).encode("utf-8", "surrogatepass")
    return _PRINCIPAL + blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def address_owner(client: str, *, limited: bool) -> str:
    """Of the client behind an address (net.address.client_of). limited: it may have only its share
    of a model's slots.
    """
    return (_LIMITED_ADDRESS if limited else _ADDRESS) + client


def is_principal(owner: str) -> bool:
    """Whether it is a principal's, rather than an address's or nobody's."""
    return owner.startswith(_PRINCIPAL)


def is_limited(owner: str) -> bool:
    """Whether it may have only its share of a model's slots."""
    return owner.startswith((_PRINCIPAL, _LIMITED_ADDRESS))


def other_id(correlation_id: CorrelationId, owner: str) -> CorrelationId:
    """What a model sees instead of a correlation id that another principal's sequence has there:
    of the same kind, and of this owner alone.
    """
    text = f"{owner} {correlation_id!r}".encode("utf-8", "surrogatepass")
    digest = blake2b(text, digest_size=_DIGEST_BYTES)
    if isinstance(correlation_id, str):
        return digest.hexdigest()
    # Positive in the protocols' signed fields, and not 0.
    return int.from_bytes(digest.digest()[:8]) >> 1 | 1


def sequence_key(correlation_id: CorrelationId, owner: str) -> Hashable:
    """What a model version knows a sequence by."""
    return (owner, correlation_id) if is_principal(owner) else correlation_id
