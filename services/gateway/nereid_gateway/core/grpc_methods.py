"""Table of all methods of the gRPC port, except for the reflection services."""

# layout: compiled

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

INFERENCE_SERVICE: Final = "inference.GRPCInferenceService"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"


class MethodKind(Enum):
    """Kinds of handlers."""

    # A callback sends the response.
    INFER = "infer"
    STREAM = "stream"
    # The handler is a coroutine that gets the message and returns the response.
    CONTROL = "control"
    # The handler is a coroutine that gets the call, the message and the principal. It waits for the
    # client's turn itself.
    CONTROL_CALL = "control call"


@dataclass(frozen=True, eq=False)
class Method:
    """Method of the gRPC port: its group of APIs, its handler, and when it is served."""

    name: str
    api: str
    # The guard reads this table and cannot import handlers, so this is text. If it is empty,
    # messages pass unchanged to the scheduler and back.
    handler: str = ""
    kind: MethodKind = MethodKind.CONTROL
    service: str = INFERENCE_SERVICE
    # Field of a control request that names a model, or empty.
    model_field: str = ""
    # The method changes the server, so --open-control-apis applies to it.
    is_control: bool = False
    # The gateway can respond by itself. Other calls wait for their client's turn.
    at_once: bool = False
    # The method reports readiness. Such calls have a queue of their own.
    is_probe: bool = False
    # A call that has begun is completed even if its client disconnects.
    survives_disconnect: bool = False

    @property
    def path(self) -> str:
        """Path of the method in HTTP/2 requests."""
        return f"/{self.service}/{self.name}"


LOAD: Final = Method(
    "RepositoryModelLoad",
    "model-repository",
    "GrpcFront.load",
    MethodKind.CONTROL_CALL,
    model_field="model_name",
    is_control=True,
    survives_disconnect=True,
)
UNLOAD: Final = Method(
    "RepositoryModelUnload",
    "model-repository",
    "GrpcFront.unload",
    MethodKind.CONTROL_CALL,
    model_field="model_name",
    is_control=True,
    survives_disconnect=True,
)
METHODS: Final = (
    Method("ModelInfer", "inference", "GrpcFront.infer", MethodKind.INFER),
    Method("ModelStreamInfer", "inference", "GrpcFront.stream_infer", MethodKind.STREAM),
    Method("ServerLive", "health", "GrpcFront.server_live", at_once=True),
    Method("ServerReady", "health", "GrpcFront.server_ready", is_probe=True),
    Method("ServerMetadata", "metadata", "GrpcFront.server_metadata", at_once=True),
    Method("Check", "health", "Health.check", service=HEALTH_SERVICE, is_probe=True),
    Method("Watch", "health", "Health.watch", MethodKind.STREAM, service=HEALTH_SERVICE),
    Method("ModelReady", "health", model_field="name", is_probe=True),
    Method("ModelMetadata", "metadata", model_field="name"),
    Method("ModelConfig", "model-config", model_field="name"),
    Method("ModelStatistics", "statistics", model_field="name"),
    Method("RepositoryIndex", "model-repository"),
    LOAD,
    UNLOAD,
    Method("TraceSetting", "trace", model_field="model_name", is_control=True),
    Method("LogSettings", "logging", is_control=True),
    Method("SystemSharedMemoryStatus", "shared-memory", "SharedMemoryMethods.system_status"),
    Method(
        "SystemSharedMemoryRegister",
        "shared-memory",
        "SharedMemoryMethods.system_register",
        is_control=True,
    ),
    Method(
        "SystemSharedMemoryUnregister",
        "shared-memory",
        "SharedMemoryMethods.system_unregister",
        is_control=True,
    ),
    Method("CudaSharedMemoryStatus", "shared-memory", "SharedMemoryMethods.cuda_status"),
    Method(
        "CudaSharedMemoryRegister",
        "shared-memory",
        "SharedMemoryMethods.cuda_register",
        is_control=True,
    ),
    Method(
        "CudaSharedMemoryUnregister",
        "shared-memory",
        "SharedMemoryMethods.cuda_unregister",
        is_control=True,
    ),
)
METHODS_BY_PATH: Final = {method.path: method for method in METHODS}
