"""Bytes that precede the outputs of a response in an Executed message.

If the outputs' sizes are known, all other bytes are known in advance. Executors write these
prefixes, and schedulers recognise them.
"""

# layout: not compiled, off the hot path

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.wire.varint import encode_varint
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH_DELIMITED: Final = 2


def response_prefixes(head: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Return the bytes before each output; `sizes` are those of one or more inline outputs."""
    payloads = []
    content = _field(pb.InferResponse.HEAD_FIELD_NUMBER, len(head)) + head
    length = len(content)
    for size in sizes:
        inline = _field(pb.Payload.INLINE_FIELD_NUMBER, size)
        payload = _field(pb.InferResponse.PAYLOADS_FIELD_NUMBER, len(inline) + size) + inline
        payloads.append(payload)
        length += len(payload) + size
    start = _field(pb.Executed.RESPONSES_FIELD_NUMBER, length) + content
    return [start + payloads[0], *payloads[1:]]


def _field(number: int, length: int) -> bytes:
    return encode_varint(number << 3 | _LENGTH_DELIMITED) + encode_varint(length)
