"""Redirects of Vertex AI's prediction route. Pure: text in, values out."""

from __future__ import annotations

from typing import Final, NamedTuple

from nereid_gateway.core.routes import VERTEX_AI, resolve

# The platform forwards headers that begin with X-Vertex-Ai.
REDIRECT_HEADER: Final = b"x-vertex-ai-triton-redirect"
_METRICS: Final = b"metrics"


class Redirect(NamedTuple):
    """Method and target that a call is served as.

    metrics: the metrics page serves the call; the target then decides who may read it.
    """

    method: bytes
    target: bytes
    metrics: bool = False


def redirect(value: bytes) -> Redirect | None:
    """Return the method and target that a redirect header leads to, or None if there is none."""
    if value == _METRICS:
        return Redirect(b"GET", b"/v2/models/stats", metrics=True)
    target = b"/" + value
    endpoint = resolve(target).endpoint
    if VERTEX_AI not in endpoint.ports:
        return None
    # Predictions are POSTs, whatever the route takes.
    return Redirect(endpoint.methods[0], target)
