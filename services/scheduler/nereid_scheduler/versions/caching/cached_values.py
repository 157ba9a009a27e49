"""Encodes responses for the cache: inline, and with a tag if others can write to the store.

Others may write to a Redis. Therefore a value needs a tag that only this mesh can make, and that is
bound to the value's key. No value can refer to shared memory.
"""

from __future__ import annotations

import hmac
import logging
import struct
from typing import TYPE_CHECKING, Final

from blake3 import blake3
from google.protobuf.message import DecodeError

from nereid.core.wire.messages import InferResponse
from nereid.core.wire.varint import encode_varint
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeGuard

    from nereid.core.wire.messages import Payload

_log = logging.getLogger(__name__)

_TAG_BYTES: Final = 16
# Protobuf tags of the fields 11 and 12 of pb.CachedResponse.
_HEAD_TAG: Final = b"\x5a"
_PAYLOAD_TAG: Final = b"\x62"


def write_cached(response: InferResponse) -> bytes | None:
    """Return the value to store for a response; `None` if it is an error or not inline."""
    payloads = response.payloads
    if response.error is not None or not _inline(payloads):
        return None
    # The protobuf library would copy the payloads twice more.
    parts = [_HEAD_TAG, encode_varint(len(response.head)), response.head]
    for payload in payloads:
        parts += _PAYLOAD_TAG, encode_varint(len(payload)), payload
    return b"".join(parts)


def read_cached(value: bytes) -> InferResponse | None:
    """Return the response in a value, without an id; `None` (a miss) if the value is invalid."""
    try:
        message = pb.CachedResponse.FromString(value)
    except DecodeError:
        message = pb.CachedResponse()
    if not message.head:
        _log.warning("the cache returned a value that is no response; counting it as a miss")
        return None
    return InferResponse(0, message.head, list(message.payloads))


class ValueSeal:
    """Add tags to values that are stored, and check the tags of values that are read."""

    def __init__(self, key: bytes) -> None:
        self._base = blake3(key=key)

    def seal(self, key: bytes, value: bytes) -> bytes:
        """Return a value with a tag that binds the value to its key in the store."""
        return self._tag(key, value) + value

    def open(self, key: bytes, sealed: bytes) -> bytes | None:
        """Return the value, or `None` if this mesh did not store it under this key."""
        value = sealed[_TAG_BYTES:]
        if not hmac.compare_digest(sealed[:_TAG_BYTES], self._tag(key, value)):
            return None
        return value

    def _tag(self, key: bytes, value: bytes) -> bytes:
        tag = self._base.copy()
        tag.update(struct.pack("<Q", len(key)) + key)
        tag.update(value)
        return tag.digest(length=_TAG_BYTES)


def _inline(payloads: Iterable[Payload]) -> TypeGuard[Iterable[bytes]]:
    return all(type(payload) is bytes for payload in payloads)
