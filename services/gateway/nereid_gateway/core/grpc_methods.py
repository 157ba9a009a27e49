"""Table of the methods of the gRPC port, but for reflection's. Pure.

Front and guard read a method's row; nothing else lists methods.
"""

# layout: compiled

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

INFERENCE_SERVICE: Final = "inference.GRPCInferenceService"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"


class MethodKind(Enum):
    """Ways in which methods are served."""

    # One request and one response, which a callback sends.
    INFER = "infer"
    STREAM = "stream"
    # A coroutine makes the response of the message.
    CONTROL = "control"
    # A coroutine makes the response of call, message and principal, and waits for its turn itself.
    CONTROL_CALL = "control call"


@dataclass(frozen=True, eq=False)
class Method:
    """Method of the gRPC port: who may call it, when it is served, and by what."""

    name: str
    # The group of APIs that a right is for.
    api: str
    # Class and method of the handler. Names, because the guard reads this table as well. Empty: the
    # scheduler responds, and messages are passed to it and back as they are.
    handler: str = ""
    kind: MethodKind = MethodKind.CONTROL
    service: str = INFERENCE_SERVICE
    # Field of the request that names a model; empty if there is none, or if it is no control call.
    model_field: str = ""
    # The method changes the server, and is guarded by --open-control-apis.
    is_control: bool = False
    # The gateway knows the response by itself; other calls wait for their client's turn.
    at_once: bool = False
    # Calls about readiness have a queue of their own beside the rest.
    is_probe: bool = False
    # A call that has begun is completed even if its client disconnects.
    goes_on: bool = False

    @property
    def path(self) -> str:
        """Path of the method's calls."""
        return f"/{self.service}/{self.name}"


LOAD: Final = Method(
    "RepositoryModelLoad",
    "model-repository",
    "GrpcFront.load",
    MethodKind.CONTROL_CALL,
    model_field="model_name",
    is_control=True,
    goes_on=True,
)
METHODS: Final = (
    Method("ModelInfer", "inference", "GrpcFront.infer", MethodKind.INFER),
    Method("ModelStreamInfer", "inference", "GrpcFront.stream_infer", MethodKind.STREAM),
    Method("ServerLive", "health", "GrpcFront.server_live", at_once=True),
    Method("ServerReady", "health", "GrpcFront.server_ready", is_probe=True),
    Method("ServerMetadata", "metadata", "GrpcFront.server_metadata", at_once=True),
    Method("Check", "health", "Health.check", service=HEALTH_SERVICE, is_probe=True),
    Method("ModelReady", "health", model_field="name", is_probe=True),
    Method("ModelMetadata", "metadata", model_field="name"),
    Method("ModelConfig", "model-config", model_field="name"),
    Method("ModelStatistics", "statistics", model_field="name"),
    Method("RepositoryIndex", "model-repository"),
    LOAD,
    Method(
        "RepositoryModelUnload",
        "model-repository",
        model_field="model_name",
        is_control=True,
        goes_on=True,
    ),
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
