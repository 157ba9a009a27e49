"""Secrets of the mesh for its response cache.

A client must not know the digests of inputs that it chooses, and a process that can write to the
store must not forge values. With a mesh token the seed is the same for all schedulers and after
restarts. Without one it is random.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from nereid.core.tensors.digest import KEY_BYTES

# BLAKE3 contexts separate each use of a key from all other uses.
_SEED_CONTEXT: Final = "nereid 2026-11 response cache: seed from a mesh token"
_REQUEST_CONTEXT: Final = "nereid 2026-11 response cache: digests of requests"
_NAME_CONTEXT: Final = "nereid 2026-11 response cache: names of versions and outputs"
_VALUE_CONTEXT: Final = "nereid 2026-11 response cache: tags of values"


@dataclass(frozen=True, slots=True, repr=False)
class CacheSecrets:
    """Keys, each for one purpose. No key reveals another key or the seed."""

    # The only key that gateways get.
    request_key: bytes
    name_key: bytes
    value_key: bytes


def cache_seed(scheduler_key: bytes) -> bytes:
    """Return the seed that derives from the mesh token's key; without a key it is random."""
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
