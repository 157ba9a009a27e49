"""Makes the bytes of HTTP/1.1 requests."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from nereid.rpc.grpc.compression import compress
from nereid.rpc.net.address import authority_of

if TYPE_CHECKING:
    from nereid_perf.plan import Plan, Workload
    from nereid_perf.request import Request


class HttpRequests:
    """Makes the heads of requests, and puts them before the bodies."""

    def __init__(self, plan: Plan) -> None:
        self._compression = plan.compression
        self._heads = [_head(plan, workload) for workload in plan.workloads]

    def wire_bytes(self, request: Request) -> bytes:
        """Return head and body."""
        body = request.message
        if self._compression != "none":
            body = compress(self._compression, (body,))
        if request.json_bytes:
            kind = (
                b"Content-Type: application/octet-stream\r\n"
                b"Inference-Header-Content-Length: %d\r\n" % request.json_bytes
            )
        else:
            kind = b"Content-Type: application/json\r\n"
        head = self._heads[request.workload]
        return b"%s%sContent-Length: %d\r\n\r\n%s" % (head, kind, len(body), body)


def _infer_path(workload: Workload) -> str:
    path = f"/v2/models/{quote(workload.model, safe='')}"
    if workload.version:
        path += f"/versions/{quote(workload.version, safe='')}"
    return f"{path}/infer"


def _head(plan: Plan, workload: Workload) -> bytes:
    path = plan.path or _infer_path(workload)
    lines = [f"POST {path} HTTP/1.1", f"Host: {authority_of(plan.endpoint.address)}"]
    if plan.compression != "none":
        lines += [
            f"Content-Encoding: {plan.compression}",
            f"Accept-Encoding: {plan.compression}",
        ]
    lines += [f"{name}: {value}" for name, value in plan.endpoint.headers]
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")
