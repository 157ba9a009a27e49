"""Secrets of the mesh for its response cache.

All derive from one seed: a client that chooses inputs must not know their digests, and a process
that can write to the cache's store must not be able to make a value that is accepted. With a mesh
token the seed derives from it, so that it is the same for all schedulers and after restarts.
Without a token it is random, and a scheduler finds only what it has stored itself since its start.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from nereid.core.tensors.digest import KEY_BYTES

# BLAKE3's contexts are constants that no other use of a key has.
_SEED_CONTEXT: Final = "nereid 2026-11 response cache: seed from a mesh token"
_REQUEST_CONTEXT: Final = "nereid 2026-11 response cache: digests of requests"
_NAME_CONTEXT: Final = "nereid 2026-11 response cache: names of versions and outputs"
_VALUE_CONTEXT: Final = "nereid 2026-11 response cache: tags of values"


@dataclass(frozen=True, slots=True, repr=False)
class CacheSecrets:
    """Keys, each for one purpose; none of them reveals another one or the seed."""

    # The gateways get only this key.
    request_key: bytes
    name_key: bytes
    value_key: bytes


def cache_seed(scheduler_key: bytes) -> bytes:
    """Return the seed that schedulers with this key, from the mesh's token, share.

    An empty key means that there is no token; the seed is random then.
    """
    if not scheduler_key:
        return secrets.token_bytes(KEY_BYTES)
    return _derive(scheduler_key, _SEED_CONTEXT)


def cache_secrets(seed: bytes) -> CacheSecrets:
    """Return the keys that derive from a seed (see `cache_seed`)."""
    return CacheSecrets(
        request_key=_derive(seed, _REQUEST_CONTEXT),
        name_key=_derive(seed, _NAME_CONTEXT),
        value_key=_derive(seed, _VALUE_CONTEXT),
    )


def _derive(secret: bytes, context: str) -> bytes:
    return blake3(secret, derive_key_context=context).digest()
