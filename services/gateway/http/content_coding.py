"""Compression of infer requests and responses over HTTP, as leniently as Triton.

What a damaged stream still yields is used; what is no stream at all yields nothing.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unimplemented

if TYPE_CHECKING:
    from collections.abc import Sequence

# zlib's numbers for the two formats.
_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
# Accepts either format, by the stream's own header.
_EITHER: Final = 47
# A fast level: clients ask for compression without meaning to (aiohttp always does).
_LEVEL: Final = 1
_PIECE_BYTES: Final = 65536
_ENCODING: Final = re.compile(rb"\s*([^;\s]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?\Z")

SUPPORTED_LINE: Final = b"Accept-Encoding: gzip, deflate\r\n"
UNSUPPORTED_MESSAGE: Final = "Unsupported compression type"


def decompress(body: bytes, encoding: bytes, limit_bytes: int) -> bytes:
    """The body that was compressed.

    Raises:
        Unimplemented: neither gzip nor deflate.
        InvalidArgument: body is empty, or more than limit_bytes would come out.
    """
    if encoding == b"identity":
        return body
    if encoding not in _WINDOW_BITS:
        raise Unimplemented(UNSUPPORTED_MESSAGE, accepted=True)
    if not body:
        raise InvalidArgument("nothing to be decompressed", accepted=True)
    stream = zlib.decompressobj(_EITHER)
    parts: list[bytes] = []
    remaining = limit_bytes
    for start in range(0, len(body), _PIECE_BYTES):
        try:
            part = stream.decompress(body[start : start + _PIECE_BYTES], remaining + 1)
        except zlib.error:
            break
        remaining -= len(part)
        if remaining < 0:
            raise InvalidArgument(
                f"decompressed request size exceeds the maximum allowed input size of {limit_bytes}"
                " bytes. Use --http-max-input-size to increase the limit."
            )
        parts.append(part)
        if stream.eof:
            break
    return b"".join(parts)


def choose_encoding(accept_encoding: bytes) -> bytes | None:
    """The coding, gzip or deflate, that the client prefers; None: send the response as it is."""
    best, best_weight = None, 0.0
    for item in accept_encoding.split(b","):
        match = _ENCODING.match(item)
        if not match or match[1] not in (b"gzip", b"deflate", b"identity"):
            continue
        try:
            weight = float(match[2]) if match[2] else 1.0
        except ValueError:
            continue
        if weight > best_weight:
            best, best_weight = match[1], weight
    return None if best == b"identity" else best


def compress(body: Sequence[bytes], encoding: bytes) -> bytes:
    """The parts of body, compressed as one."""
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return b"".join((*map(stream.compress, body), stream.flush()))
