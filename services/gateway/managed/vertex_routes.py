"""Where a call of Vertex AI's prediction route is redirected to. Pure: text in, values out."""

from __future__ import annotations

from typing import Final, NamedTuple

from nereid.services.gateway.http.routes import RouteKind, resolve

# Platforms pass headers that begin with X-Vertex-Ai on.
REDIRECT_HEADER: Final = b"x-vertex-ai-triton-redirect"
_METRICS: Final = b"metrics"
# Predictions are POSTs, whatever the route takes.
_POST: Final = frozenset(
    {
        RouteKind.INFER,
        RouteKind.GENERATE,
        RouteKind.GENERATE_STREAM,
        RouteKind.REPOSITORY_INDEX,
        RouteKind.REPOSITORY_LOAD,
        RouteKind.REPOSITORY_UNLOAD,
        RouteKind.SHARED_MEMORY_REGISTER,
        RouteKind.SHARED_MEMORY_UNREGISTER,
    }
)
# As on Triton.
_CLOSED: Final = frozenset(
    {
        RouteKind.NOT_FOUND,
        RouteKind.TRACE_SETTING,
        RouteKind.LOGGING,
        RouteKind.EXECUTOR_DRAIN,
    }
)


class Redirect(NamedTuple):
    """The method and target that a call is served as. metrics: by the metrics page; the target then
    says who may read it.
    """

    method: bytes
    target: bytes
    metrics: bool = False


def redirect(value: bytes) -> Redirect | None:
    """Where a redirect header leads; None: nowhere."""
    if value == _METRICS:
        return Redirect(b"GET", b"/v2/models/stats", metrics=True)
    target = b"/" + value
    kind = resolve(target).kind
    if kind in _CLOSED:
        return None
    return Redirect(b"POST" if kind in _POST else b"GET", target)
