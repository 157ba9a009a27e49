"""Compression of gRPC messages (identity, gzip, deflate), and bounded decompression.

Pure. A message never decompresses to more than the receiver's limit, whatever its compressed size.
"""

from __future__ import annotations

import zlib

from nereid.rpc.grpc.status import RpcError, Status

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


def compress(encoding: str, message: bytes) -> bytes | None:
    """The message compressed, or None where that would not make it smaller."""
    wbits = _GZIP_WBITS if encoding == "gzip" else zlib.MAX_WBITS
    deflate = zlib.compressobj(wbits=wbits)
    out = deflate.compress(message) + deflate.flush()
    return out if len(out) < len(message) else None


def decompress(encoding: str, data: bytes, max_bytes: int) -> bytes:
    """Undo a message's compression; RpcError when damaged, too large or never announced."""
    if encoding == "gzip":
        wbits = _GZIP_WBITS
    elif encoding == "deflate":
        wbits = zlib.MAX_WBITS
    else:
        raise RpcError(Status.INTERNAL, "a compressed message without grpc-encoding")
    inflate = zlib.decompressobj(wbits)
    try:
        out = inflate.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise RpcError(Status.INTERNAL, "a damaged compressed message") from error
    if len(out) > max_bytes:
        raise RpcError(
            Status.RESOURCE_EXHAUSTED, f"decompressed message is larger than {max_bytes} bytes"
        )
    if not inflate.eof or inflate.unused_data:
        raise RpcError(Status.INTERNAL, "a damaged compressed message")
    return out
