"""Compression of gRPC messages (identity, gzip, deflate), and decompression within limits."""

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
# gRPC's names of compression levels. They choose the same algorithms as in gRPC.
LEVELS = ("none", "low", "medium", "high")


def reply_encoding(level: str, accepted: bytes) -> str | None:
    """Return the response encoding for a grpc-accept-encoding; None means no compression."""
    offered = {name.strip() for name in accepted.split(b",")}
    known = [name for name in ("gzip", "deflate") if name.encode() in offered]
    if level == "none" or not known:
        return None
    return known[0] if level == "low" else known[-1]


def compress(encoding: str, parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the compressed form of a message that is given in parts."""
    deflation = begin_deflation(encoding, parts)
    deflation.deflate(sum(map(len, parts)))
    return deflation.content()


def begin_deflation(encoding: str, parts: Sequence[bytes | memoryview]) -> Deflation:
    """Begin to compress a message that is given in parts."""
    return Deflation(parts, _GZIP_WBITS if encoding == "gzip" else zlib.MAX_WBITS)


def begin_inflation(encoding: str, data: bytes, limits: InflationLimits) -> Inflation:
    """Begin to decompress a message; raise RpcError if grpc-encoding does not allow that."""
    if encoding == "gzip":
        return Inflation(data, _GZIP_WBITS, limits)
    if encoding == "deflate":
        return Inflation(data, zlib.MAX_WBITS, limits)
    raise RpcError(Status.INTERNAL, "a compressed message without grpc-encoding")


def inflate(inflation: Inflation, size_bytes: int) -> None:
    """Inflate about `size_bytes` more; raise RpcError if the message is damaged or too large."""
    try:
        inflation.inflate(size_bytes)
    except (zlib.error, InflatedTooLargeError) as error:
        raise inflation_error(inflation, error) from None


def inflation_error(inflation: Inflation, error: Exception) -> RpcError:
    """Return the error with which to end a call whose message cannot be inflated."""
    if not isinstance(error, InflatedTooLargeError):
        return RpcError(Status.INTERNAL, "a damaged compressed message")
    too_large = f"decompressed message is larger than {inflation.max_bytes} bytes"
    if inflation.inflated_bytes <= inflation.max_bytes:
        too_large = "decompressed message is too large for its compressed size"
    return RpcError(Status.RESOURCE_EXHAUSTED, too_large)


def inflated_message(inflation: Inflation) -> bytes:
    """Return the message of a finished inflation; raise RpcError if it is damaged."""
    if not inflation.intact:
        raise RpcError(Status.INTERNAL, "a damaged compressed message")
    return inflation.content()
