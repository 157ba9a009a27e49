"""The contract between an executor and a backend; docs/backend-authors.md is the guide."""

from nereid.backends.backend import Backend, InstanceSpec, Model, ModelCodeBackend
from nereid.backends.capabilities import (
    BackendCapabilities,
    Capabilities,
    backend_capabilities_of,
    capabilities_of,
)
from nereid.backends.description import EMPTY_DESCRIPTION, ModelDescription, TensorDescription
from nereid.backends.mesh import MeshClient, MeshRequest, RequestControl
from nereid.backends.pipelined_model import PipelinedModel, TensorParts
from nereid.backends.request_model import (
    BatchUpdate,
    ControlKind,
    ModelLostError,
    ReadinessReporter,
    Request,
    RequestModel,
    RequestSpec,
    Response,
)

__all__ = [
    "EMPTY_DESCRIPTION",
    "Backend",
    "BackendCapabilities",
    "BatchUpdate",
    "Capabilities",
    "ControlKind",
    "InstanceSpec",
    "MeshClient",
    "MeshRequest",
    "Model",
    "ModelCodeBackend",
    "ModelDescription",
    "ModelLostError",
    "PipelinedModel",
    "ReadinessReporter",
    "Request",
    "RequestControl",
    "RequestModel",
    "RequestSpec",
    "Response",
    "TensorDescription",
    "TensorParts",
    "backend_capabilities_of",
    "capabilities_of",
]
