"""Keys of callers as they travel with requests: a tag of their source, and a digest of the value.

The tag shows the scheduler whether the gateway knew the present source. Values do not travel.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

TAG_BYTES: Final = 4
_KEY_BYTES: Final = 8


def source_tag(by: str) -> bytes:
    """Return the tag of a source of keys (`Traffic.by`)."""
    return blake2b(by.encode(), digest_size=TAG_BYTES).digest()


def key_of(value: bytes) -> bytes:
    """Return the key of a caller by the value of its header, parameter or tensor, for example."""
    return blake2b(value, digest_size=_KEY_BYTES).digest()


def request_key(request_id: int) -> bytes:
    """Return the key of a request on its own. It is the same if the request is sent again."""
    return request_id.to_bytes(_KEY_BYTES)
