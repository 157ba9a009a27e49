"""Redirects of Vertex AI's prediction route."""

from __future__ import annotations

from typing import Final, NamedTuple

from nereid_gateway.core.routes import VERTEX_AI, resolve

# The platform forwards headers whose names begin with X-Vertex-Ai.
REDIRECT_HEADER: Final = b"x-vertex-ai-triton-redirect"
_METRICS: Final = b"metrics"


class Redirect(NamedTuple):
    """Method and target of a redirected call.

    metrics: the metrics page serves the call, and the target only decides who may read it.
    """

    method: bytes
    target: bytes
    metrics: bool = False


def redirect(value: bytes) -> Redirect | None:
    """Return the method and target for a redirect header, or None if it names no route."""
    if value == _METRICS:
        return Redirect(b"GET", b"/v2/models/stats", metrics=True)
    target = b"/" + value
    endpoint = resolve(target).endpoint
    if VERTEX_AI not in endpoint.ports:
        return None
    # The platform sends every prediction as a POST, so the method comes from the route.
    return Redirect(endpoint.methods[0], target)
