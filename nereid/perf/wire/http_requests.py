"""A request as the bytes of HTTP/1.1. Pure."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from nereid.rpc.net.address import authority_of

if TYPE_CHECKING:
    from nereid.perf.plan import Compression, Plan, Workload
    from nereid.perf.request import Request

_GZIP_BITS: Final = 31
_ZLIB_BITS: Final = 15
# Requests that are sent again and again are kept as they are sent, if they are not large.
_MOST_KEPT: Final = 256
_LARGEST_KEPT_BYTES: Final = 1 << 16


def compressed(message: bytes, compression: Compression) -> bytes:
    """Deflate is zlib's format, in HTTP and in gRPC."""
    if compression == "none":
        return message
    deflate = zlib.compressobj(wbits=_GZIP_BITS if compression == "gzip" else _ZLIB_BITS)
    return deflate.compress(message) + deflate.flush()


class HttpRequests:
    """Puts heads before bodies."""

    def __init__(self, plan: Plan) -> None:
        self._compression = plan.compression
        self._heads = [_head(plan, workload) for workload in plan.workloads]
        # By identity: the request is kept with its bytes, so that no other one gets its id.
        self._kept: dict[int, tuple[Request, bytes]] = {}

    def wire_bytes(self, request: Request) -> bytes:
        """Head and body."""
        kept = self._kept.get(id(request))
        if kept is not None:
            return kept[1]
        body = compressed(request.message, self._compression)
        if request.json_bytes:
            kind = (
                b"Content-Type: application/octet-stream\r\n"
                b"Inference-Header-Content-Length: %d\r\n" % request.json_bytes
            )
        else:
            kind = b"Content-Type: application/json\r\n"
        head = self._heads[request.workload]
        data = b"%s%sContent-Length: %d\r\n\r\n%s" % (head, kind, len(body), body)
        if len(data) <= _LARGEST_KEPT_BYTES:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[id(request)] = request, data
        return data


def _head(plan: Plan, workload: Workload) -> bytes:
    path = f"/v2/models/{quote(workload.model, safe='')}"
    if workload.version:
        path += f"/versions/{quote(workload.version, safe='')}"
    lines = [f"POST {path}/infer HTTP/1.1", f"Host: {authority_of(plan.endpoint.address)}"]
    if plan.compression != "none":
        lines += [
            f"Content-Encoding: {plan.compression}",
            f"Accept-Encoding: {plan.compression}",
        ]
    lines += [f"{name}: {value}" for name, value in plan.endpoint.headers]
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")
