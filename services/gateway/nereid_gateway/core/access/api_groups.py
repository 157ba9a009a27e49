"""Groups of APIs that clients are permitted or refused as a whole.

Their names are Triton's, except for the console's. The tables of core/routes.py and
core/grpc_methods.py assign endpoints and methods to them.
"""

from __future__ import annotations

from typing import Final

from nereid_gateway.core.routes import ENDPOINTS

# The order is the one in which messages list them.
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
