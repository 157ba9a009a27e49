"""Compression of gRPC messages (identity, gzip, deflate), and bounded decompression.

Pure. A message never decompresses to more than the receiver's limits, whatever its compressed size.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.net.deflation import Deflation
from nereid.rpc.net.inflation import InflatedTooLargeError, Inflation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.rpc.net.inflation import InflationLimits

ENCODINGS = frozenset(("identity", "gzip", "deflate"))
ACCEPTED = "identity,deflate,gzip"
_GZIP_WBITS = 31
# How much to compress responses: gRPC's levels, which choose the same algorithms as gRPC does.
LEVELS = ("none", "low", "medium", "high")


def reply_encoding(level: str, accepted: bytes) -> str | None:
    """How to compress for a client with this grpc-accept-encoding; None: not at all."""
    offered = {name.strip() for name in accepted.split(b",")}
    known = [name for name in ("gzip", "deflate") if name.encode() in offered]
    if level == "none" or not known:
        return None
    return known[0] if level == "low" else known[-1]


def compress(encoding: str, parts: Sequence[bytes | memoryview]) -> bytes:
    """The message that the parts are, compressed."""
    deflation = begin_deflation(encoding, parts)
    deflation.deflate(sum(map(len, parts)))
    return deflation.content()


def begin_deflation(encoding: str, parts: Sequence[bytes | memoryview]) -> Deflation:
    """Begin to compress a message."""
    return Deflation(parts, _GZIP_WBITS if encoding == "gzip" else zlib.MAX_WBITS)


def begin_inflation(encoding: str, data: bytes, limits: InflationLimits) -> Inflation:
    """Begin to undo a message's compression; RpcError when it was never announced."""
    if encoding == "gzip":
        return Inflation(data, _GZIP_WBITS, limits)
    if encoding == "deflate":
        return Inflation(data, zlib.MAX_WBITS, limits)
    raise RpcError(Status.INTERNAL, "a compressed message without grpc-encoding")


def inflate(inflation: Inflation, size_bytes: int) -> None:
    """Inflate so much more of a message; RpcError when it is damaged or too large."""
    try:
        inflation.inflate(size_bytes)
    except (zlib.error, InflatedTooLargeError) as error:
        raise inflation_error(inflation, error) from None


def inflation_error(inflation: Inflation, error: Exception) -> RpcError:
    """What ends a call whose message cannot be inflated."""
    if not isinstance(error, InflatedTooLargeError):
        return RpcError(Status.INTERNAL, "a damaged compressed message")
    too_large = f"decompressed message is larger than {inflation.max_bytes} bytes"
    if inflation.inflated_bytes <= inflation.max_bytes:
        too_large = "decompressed message is too large for its compressed size"
    return RpcError(Status.RESOURCE_EXHAUSTED, too_large)


def inflated_message(inflation: Inflation) -> bytes:
    """The message of an inflation that is done; RpcError when it is damaged."""
    if not inflation.intact:
        raise RpcError(Status.INTERNAL, "a damaged compressed message")
    return inflation.content()
