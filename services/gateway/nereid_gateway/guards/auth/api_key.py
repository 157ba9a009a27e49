"""API keys: random texts, of which a gateway stores only digests.

A key has 256 random bits, so one round of SHA-256 is enough.
"""

from __future__ import annotations

import secrets
from hashlib import sha256

# People and scanners for leaked secrets recognise a key by the prefix.
_PREFIX = "nereid_"


def make_key() -> str:
    """Return a new random key."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> str:
    """Return the digest by which the configuration names a key, in hexadecimal digits."""
    return sha256(key.encode("utf-8", "replace")).hexdigest()
