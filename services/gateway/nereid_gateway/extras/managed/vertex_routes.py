"""Where a call of Vertex AI's prediction route is redirected to. Pure: text in, values out."""

from __future__ import annotations

from typing import Final, NamedTuple

from nereid_gateway.core.routes import RULES, VERTEX_AI, resolve

# Platforms pass headers that begin with X-Vertex-Ai on.
REDIRECT_HEADER: Final = b"x-vertex-ai-triton-redirect"
_METRICS: Final = b"metrics"


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
    rule = RULES.get(resolve(target).kind)
    if rule is None or VERTEX_AI not in rule.ports:
        return None
    # Predictions are POSTs, whatever the route takes.
    return Redirect(rule.methods[0], target)
