"""Targets of requests: each names a route that its names lead back to, and its query is read or
refused.
"""

from __future__ import annotations

from nereid.core.errors import InvalidArgument
from nereid_gateway.core.routes import ENDPOINTS, NOT_FOUND, model_target, resolve
from nereid_gateway.server.query import Query

MAX_BYTES = 512
_MAX_S = 1_000_000
SEEDS = [
    b"/v2/models/m/versions/1/infer",
    b"/v2/models/my%20mod%C3%A8le/infer",
    b"http://host/v2/systemsharedmemory/region/r/status",
    b"/v2/nereid/timeline?last=1e308",
    b"/v2/nereid/executors/e/drain?allow_last=true",
]
WORDS = [b"%2F", b"%ff", b"%", b"/infer", b"?last=", b"&", b"nan", b"inf", b"-1", b"1e9", b"\xc3"]


def run(data: bytes) -> None:
    route = resolve(data)
    assert route.endpoint is NOT_FOUND or route.endpoint in ENDPOINTS
    assert not any("/" in name for name in route[1:] if isinstance(name, str))
    if route.endpoint.handler == "InferEndpoint.handle":
        assert resolve(model_target(route.model, "infer")).model == route.model
    try:
        query = Query(data, ("last", "allow_last"))
        assert 0 < query.seconds("last", 30, _MAX_S) <= _MAX_S
        query.flag("allow_last")
    except InvalidArgument:
        return
