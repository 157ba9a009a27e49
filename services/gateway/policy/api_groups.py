"""The groups of APIs that clients are given or refused as one; their names are Triton's, but for
that of the console.
"""

from __future__ import annotations

from typing import Final

from nereid.services.gateway.http.routes import RouteKind

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVICE: Final = "/inference.GRPCInferenceService/"

ROUTES_BY_API: Final[dict[str, tuple[RouteKind, ...]]] = {
    "health": (RouteKind.LIVE, RouteKind.READY, RouteKind.MODEL_READY),
    "metadata": (RouteKind.SERVER_METADATA, RouteKind.MODEL_METADATA),
    "inference": (RouteKind.INFER, RouteKind.GENERATE, RouteKind.GENERATE_STREAM),
    "shared-memory": (
        RouteKind.SHARED_MEMORY_STATUS,
        RouteKind.SHARED_MEMORY_REGISTER,
        RouteKind.SHARED_MEMORY_UNREGISTER,
    ),
    "model-config": (RouteKind.MODEL_CONFIG,),
    "model-repository": (
        RouteKind.REPOSITORY_INDEX,
        RouteKind.REPOSITORY_LOAD,
        RouteKind.REPOSITORY_UNLOAD,
        RouteKind.EXECUTOR_DRAIN,
    ),
    "statistics": (RouteKind.MODEL_STATISTICS,),
    "trace": (RouteKind.TRACE_SETTING, RouteKind.TIMELINE),
    "logging": (RouteKind.LOGGING,),
    "console": (RouteKind.CONSOLE_FACTS, RouteKind.CONSOLE_STREAM),
}
# Open to everybody: it says nothing of the server.
OPEN_ROUTES: Final = frozenset({RouteKind.CONSOLE_PAGE})
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
API_BY_ROUTE: Final = {kind: api for api, kinds in ROUTES_BY_API.items() for kind in kinds}
API_BY_METHOD: Final = {path: api for api, paths in METHODS_BY_API.items() for path in paths}
# What changes the server, or shows what other clients do. What is there (index, status) everybody
# may read.
CHANGING_ROUTES: Final = frozenset(
    {
        RouteKind.REPOSITORY_LOAD,
        RouteKind.REPOSITORY_UNLOAD,
        RouteKind.EXECUTOR_DRAIN,
        RouteKind.SHARED_MEMORY_REGISTER,
        RouteKind.SHARED_MEMORY_UNREGISTER,
        RouteKind.TRACE_SETTING,
        RouteKind.TIMELINE,
        RouteKind.LOGGING,
    }
)
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
CONTROL_APIS: Final = frozenset(API_BY_ROUTE[kind] for kind in CHANGING_ROUTES)
