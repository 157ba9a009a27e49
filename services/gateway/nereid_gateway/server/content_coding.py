"""Compression of inference requests and responses over HTTP, as lenient as Triton's.

If a compressed body is damaged, the part before the damage is used. A body that is not compressed
at all yields no bytes.
"""

# layout: not compiled, coroutines, in control calls alone

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unavailable, Unimplemented
from nereid.rpc.net.deflation import Deflation
from nereid.rpc.net.inflation import InflatedTooLargeError, Inflation, InflationLimits
from nereid.rpc.net.limits.budget import OverBudgetError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.rpc.net.zlib_queue import ZlibQueue

# The window bits tell zlib which of the two formats to write.
_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
# With these window bits, zlib accepts either format and detects it from the header of the stream.
_EITHER: Final = 47
# The level is a fast one because many clients ask for compression without meaning to (aiohttp
# always does).
_LEVEL: Final = 1
# Up to this many bytes of a body are inflated at once. The rest of a larger body takes turns with
# the bodies of other clients.
_INLINE_BYTES: Final = 32768
_ENCODING: Final = re.compile(rb"\s*([^;\s]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?\Z")

SUPPORTED_LINE: Final = b"Accept-Encoding: gzip, deflate\r\n"
UNSUPPORTED_MESSAGE: Final = "Unsupported compression type"


class ContentCoder:
    """Decompress requests, within limits, and compress responses."""

    def __init__(self, max_bytes: int, max_ratio: float | None, queue: ZlibQueue) -> None:
        self._limits = InflationLimits(max_bytes=max_bytes, max_ratio=max_ratio)
        self._queue = queue

    async def decompress(
        self, body: bytes, encoding: bytes, peer: str, hold: Callable[[int], None]
    ) -> bytes:
        """Return the decompressed body.

        hold: called with the number of bytes that are kept; may raise OverBudgetError.

        Raises:
            Unimplemented: the encoding is neither gzip nor deflate.
            InvalidArgument: the body is empty, or its content exceeds the limits.
            Unavailable: the client has too many bytes here.
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
            # The body is damaged. Like Triton, use what was decompressed before the damage.
            pass
        except InflatedTooLargeError:
            raise InvalidArgument(self._too_large(inflation)) from None
        except OverBudgetError as error:
            raise Unavailable(error.message) from None
        return inflation.content()

    async def compress(self, body: Sequence[bytes], encoding: bytes, peer: str) -> bytes:
        """Return one compressed body, made from the parts of a large body.

        The compression takes turns with the bodies of other clients.
        """
        deflation = Deflation(body, _WINDOW_BITS[encoding], _LEVEL)
        while not deflation.done:
            await self._queue.run_slice(peer, deflation.deflate)
        return deflation.content()

    def _too_large(self, inflation: Inflation) -> str:
        limit_bytes = self._limits.max_bytes
        if inflation.inflated_bytes <= limit_bytes:
            return "decompressed request is too large for its compressed size"
        return (
            f"decompressed request size exceeds the maximum allowed input size of {limit_bytes}"
            " bytes. Use --http-max-input-size to increase the limit."
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
        if weight > best_weight:
            best, best_weight = match[1], weight
    return None if best == b"identity" else best


def compress(body: Sequence[bytes], encoding: bytes) -> bytes:
    """Return one compressed body, made from the parts of a body."""
    deflation = Deflation(body, _WINDOW_BITS[encoding], _LEVEL)
    deflation.deflate(sum(map(len, body)))
    return deflation.content()
