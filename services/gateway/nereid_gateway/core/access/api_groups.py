"""The groups of APIs that clients are given or refused as one; their names are Triton's, but for
that of the console. The tables of http/routes.py and grpc/methods.py say what is in each group.
"""

from __future__ import annotations

from typing import Final

from nereid_gateway.core.routes import ENDPOINTS

# In the order in which messages list them.
APIS: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
    "console",
)
CONTROL_APIS: Final = frozenset(endpoint.api for endpoint in ENDPOINTS if endpoint.is_control)
