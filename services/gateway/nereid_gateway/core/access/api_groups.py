"""The groups of APIs that clients are given or refused as one; their names are Triton's, but for
that of the console. Which routes are in them is the table of http/routes.py.
"""

from __future__ import annotations

from typing import Final

from nereid_gateway.core.routes import RULES

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVICE: Final = "/inference.GRPCInferenceService/"

_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "health": ("ServerLive", "ServerReady", "ModelReady"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": ("ModelInfer", "ModelStreamInfer"),
    "shared-memory": tuple(
        f"{kind}SharedMemory{act}"
        for kind in ("System", "Cuda")
        for act in ("Status", "Register", "Unregister")
    ),
    "model-config": ("ModelConfig",),
    "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    "statistics": ("ModelStatistics",),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
    "console": (),
}
# Paths of gRPC methods.
METHODS_BY_API: Final[dict[str, tuple[str, ...]]] = {
    name: tuple(_SERVICE + method for method in methods) for name, methods in _METHODS.items()
}
METHODS_BY_API["health"] += (HEALTH_CHECK,)
# By the names of groups, as --http-restricted-api and API keys know them.
APIS: Final = tuple(METHODS_BY_API)
API_BY_METHOD: Final = {path: api for api, paths in METHODS_BY_API.items() for path in paths}
# What changes the server.
CHANGING_METHODS: Final = frozenset(
    _SERVICE + method
    for method in (
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    )
)
CONTROL_APIS: Final = frozenset(rule.api for rule in RULES.values() if rule.is_control)
