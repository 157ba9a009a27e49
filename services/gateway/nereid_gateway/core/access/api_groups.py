<<<<<<< HEAD
"""The groups of APIs that clients are given or refused as one; their names are Triton's, but for
that of the console. The tables of http/routes.py and grpc/methods.py say what is in each group.
=======
"""Groups of APIs that clients are permitted or refused as a whole.

Their names are Triton's, except for the console's. The table of http/routes.py assigns HTTP routes
to them.
>>>>>>> 253cb04c (Plain words in the gateway's guards, console and shared memory, and in the Python backend)
"""

from __future__ import annotations

from typing import Final

from nereid_gateway.core.routes import ENDPOINTS

<<<<<<< HEAD
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
=======
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
# Names of the groups, as --http-restricted-api and API keys use them.
APIS: Final = tuple(METHODS_BY_API)
API_BY_METHOD: Final = {path: api for api, paths in METHODS_BY_API.items() for path in paths}
# Methods that change the server's state.
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
>>>>>>> 253cb04c (Plain words in the gateway's guards, console and shared memory, and in the Python backend)
)
CONTROL_APIS: Final = frozenset(endpoint.api for endpoint in ENDPOINTS if endpoint.is_control)
