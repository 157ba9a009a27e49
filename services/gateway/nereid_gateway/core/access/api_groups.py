"""Groups of APIs, with Triton's names. Clients may be permitted or refused a whole group."""

from __future__ import annotations

from typing import Final

from nereid_gateway.core.routes import ENDPOINTS

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
