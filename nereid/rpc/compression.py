"""Bounded decompression of gRPC messages: identity, gzip, deflate.

Pure. A message must never unfold to more than the receiver's limit, whatever its compressed size
says.
"""

from __future__ import annotations

import zlib

from nereid.rpc.status import RpcError, Status

ENCODINGS = frozenset(("identity", "gzip", "deflate"))
ACCEPTED = "identity,deflate,gzip"
_GZIP_WBITS = 31


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
