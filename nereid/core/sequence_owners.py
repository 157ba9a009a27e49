"""Owners of sequences: texts that a gateway adds to requests with a correlation id.

Each principal has its own sequences. Clients without a principal share one set of ids, because an
address does not identify a client. The address only limits a client's share of a model's slots and
lets clients take turns.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid.core.correlation_ids import CorrelationId

# Only a request with this parameter has an owner.
SEQUENCE_ID: Final = "sequence_id"
_PRINCIPAL, _LIMITED_ADDRESS, _ADDRESS = "p", "a", "t"
# A principal's owner goes on with hexadecimal digits.
_COPIES: Final = _PRINCIPAL + "-"
_DIGEST_BYTES: Final = 12


def principal_owner(*identity: str) -> str:
    """Return the owner for a principal. The owner does not reveal these texts."""
    text = "\0".join(identity).encode("utf-8", "surrogatepass")
    return _PRINCIPAL + blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def owner_of_copies(model: str, owner: str) -> str:
    """Return the owner of the copies of a model's sequences, which none of a client's has."""
    return _COPIES + principal_owner(model, owner if is_principal(owner) else "")


def is_of_copies(owner: str) -> bool:
    """Return whether the owner has copies of sequences, for a shadow."""
    return owner.startswith(_COPIES)


def address_owner(client: str, *, limited: bool) -> str:
    """Return the owner for a client known by its address (net.address.client_of).

    If `limited` is True, the client gets only its share of a model's slots.
    """
    return (_LIMITED_ADDRESS if limited else _ADDRESS) + client


def is_principal(owner: str) -> bool:
    """Return whether the owner is a principal; false for an address, and for the empty text."""
    return owner.startswith(_PRINCIPAL)


def is_limited(owner: str) -> bool:
    """Return whether the owner may have only its share of a model's slots."""
    return owner.startswith((_PRINCIPAL, _LIMITED_ADDRESS))


def id_shown_to_model(correlation_id: CorrelationId, owner: str) -> CorrelationId:
    """Return the id to show to a model if another owner uses the same correlation id.

    The result has the type of the correlation id, and is different for each owner.
    """
    text = f"{owner} {correlation_id!r}".encode("utf-8", "surrogatepass")
    digest = blake2b(text, digest_size=_DIGEST_BYTES)
    if isinstance(correlation_id, str):
        return digest.hexdigest()
    # Positive, to fit the protocols' signed fields.
    return int.from_bytes(digest.digest()[:8]) >> 1 | 1


def sequence_key(correlation_id: CorrelationId, owner: str) -> Hashable:
    """Return the key that identifies a sequence within a model version."""
    return (owner, correlation_id) if is_principal(owner) else correlation_id
