"""Write docs/reference/routes.md from the table of the gateway's routes.

With --check: exit with 1 if it differs.

usage: route_reference.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nereid_gateway.core.routes import ENDPOINTS, HTTP, METRICS, SAGEMAKER, VERTEX_AI
from scripts.reference_page import table, write_or_check

_INTRODUCTION = """\
# Routes of the HTTP ports

<!-- Written by scripts/route_reference.py from services/gateway/nereid_gateway/core/routes.py. -->

The API is what a key of [`--auth-config`](../operators/authentication.md) has a right for and what
`--http-restricted-api` restricts; a route without one says nothing of the server. Control routes
are closed by `--open-control-apis=false`, and refuse what browsers send for pages of other origins;
with `--console` every POST is refused to these. A port has the routes that are named here for it:
SageMaker's and Vertex AI's have routes of their own, which become these. Names in a path may be
quoted (`my%20model`).

"""
_PORTS = {HTTP: "HTTP", SAGEMAKER: "SageMaker", VERTEX_AI: "Vertex AI", METRICS: "metrics"}
_HEADER = ("Route", "Methods", "API", "Control", "Ports")


def page() -> str:
    """Return the text of the page."""
    rows = [
        (
            f"`{template}`",
            b", ".join(endpoint.methods).decode(),
            f"`{endpoint.api}`" if endpoint.api else "",
            "yes" if endpoint.is_control else "",
            ", ".join(_PORTS[port] for port in endpoint.ports),
        )
        for endpoint in ENDPOINTS
        for template in endpoint.templates
    ]
    return _INTRODUCTION + table(_HEADER, rows)


if __name__ == "__main__":
    sys.exit(write_or_check("routes.md", page(), "The reference page of the gateway's routes"))
