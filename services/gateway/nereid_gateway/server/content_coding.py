"""Compression of inference requests and responses over HTTP, as lenient as Triton's.

If a body is damaged, the part before the damage is used, which may be nothing.
"""

# layout: not compiled, coroutines, in control calls alone

from __future__ import annotations

import re
import zlib
from math import inf
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unavailable, Unimplemented
from nereid.rpc.net.deflation import Deflation
from nereid.rpc.net.inflation import InflatedTooLargeError, Inflation, InflationLimits
from nereid.rpc.net.limits.budget import OverBudgetError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.rpc.net.zlib_queue import ZlibQueue

_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
# With these window bits, zlib detects the format from the header of the stream.
_EITHER: Final = 47
# A fast level: many clients ask for compression without meaning to (aiohttp always does).
_LEVEL: Final = 1
# Bytes of a body that are inflated at once. The rest takes turns with the bodies of other clients.
_INLINE_BYTES: Final = 32768
_ENCODING: Final = re.compile(rb"\s*([^;\s]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?\Z")

ENCODING_LINE: Final = b"Content-Encoding: %b\r\n"
SUPPORTED_LINE: Final = b"Accept-Encoding: gzip, deflate\r\n"
UNSUPPORTED_MESSAGE: Final = "Unsupported compression type"


class ContentCoder:
    """Decompresses requests within limits, and compresses responses."""

    def __init__(self, max_bytes: int, max_ratio: float | None, queue: ZlibQueue) -> None:
        self._limits = InflationLimits(max_bytes=max_bytes, max_ratio=max_ratio)
        self._queue = queue
        self.max_bytes = max_bytes

    async def decompress(
        self, body: bytes, encoding: bytes, peer: str, hold: Callable[[int], None]
    ) -> bytes:
        """Return the decompressed body. hold: gets the number of bytes to keep; may raise an error.

        Raises Unimplemented if the encoding is neither gzip nor deflate. Raises InvalidArgument if
        the body is empty or too large. Raises Unavailable if the client has too many bytes here.
        """
        if encoding == b"identity":
            return body
        if encoding not in _WINDOW_BITS:
            raise Unimplemented(UNSUPPORTED_MESSAGE, accepted=True)
        if not body:
            raise InvalidArgument("nothing to be decompressed", accepted=True)
        inflation = Inflation(body, _EITHER, self._limits)
        try:
            inflation.inflate(_INLINE_BYTES)
            if not inflation.done:
                await self._queue.inflate(peer, inflation, hold)
        except zlib.error:
            # Like Triton, use what was decompressed before the damage.
            pass
        except InflatedTooLargeError:
            raise InvalidArgument(self._too_large(inflation)) from None
        except OverBudgetError as error:
            raise Unavailable(error.message) from None
        return inflation.content()

    async def encode(
        self, body: Sequence[bytes], accepted: bytes | None, peer: str
    ) -> tuple[Sequence[bytes], bytes]:
        """Return a body in the coding that a client accepts, and the header line that names it.

        accepted: the Accept-Encoding header, if there is one.
        """
        encoding = choose_encoding(accepted) if accepted else None
        if encoding is None:
            return body, b""
        return (await self.compress(body, encoding, peer),), ENCODING_LINE % encoding

    async def compress(self, body: Sequence[bytes], encoding: bytes, peer: str) -> bytes:
        """Compress a large body, in turns with the bodies of other clients."""
        deflation = Deflation(body, _WINDOW_BITS[encoding], _LEVEL)
        while not deflation.done:
            await self._queue.run_slice(peer, deflation.deflate)
        return deflation.content()

    def _too_large(self, inflation: Inflation) -> str:
        if inflation.inflated_bytes <= self.max_bytes:
            return "decompressed request is too large for its compressed size"
        return (
            f"Decompressed data size exceeds the maximum allowed value of {self.max_bytes} bytes."
            " Use --http-max-input-size to increase the limit."
        )


def choose_encoding(accept_encoding: bytes) -> bytes | None:
    """Return the coding that the client prefers: gzip, deflate, or None for no compression."""
    best, best_weight = None, 0.0
    for item in accept_encoding.split(b","):
        match = _ENCODING.match(item)
        if not match or match[1] not in (b"gzip", b"deflate", b"identity"):
            continue
        try:
            weight = float(match[2]) if match[2] else 1.0
        except ValueError:
            continue
        # As on Triton, a weight that no double holds does not count.
        if best_weight < weight < inf:
            best, best_weight = match[1], weight
    return None if best == b"identity" else best


def compress(body: Sequence[bytes], encoding: bytes) -> bytes:
    """Compress a small body at once."""
    deflation = Deflation(body, _WINDOW_BITS[encoding], _LEVEL)
    deflation.deflate(sum(map(len, body)))
    return deflation.content()
