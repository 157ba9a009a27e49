"""API keys: random texts, of which a gateway knows only digests.

A key has 256 random bits, so one round of SHA-256 is enough: there is nothing to guess.
"""

from __future__ import annotations

import secrets
from hashlib import sha256

# Tells people and scanners of leaked secrets what it is.
_PREFIX = "nereid_"


def make_key() -> str:
    """A new key."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> str:
    """What stands for a key in the configuration."""
    return sha256(key.encode("utf-8", "replace")).hexdigest()
