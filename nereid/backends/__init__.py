"""The contract between an executor and a backend, which backend authors implement.

A backend is a module, or any object, with the functions of Backend; a package offers its backends
by the entry point group "nereid.backends". Most backends return a Model, which executes whole
batches as numpy arrays and knows nothing of requests. A backend whose models need the requests
themselves, or respond to each in their own time, returns a RequestModel. Capabilities declares
everything else that a model can do.

Modules for authors' convenience are imported by name: parameters, model_file, shared_models,
request_arrays, and device_io for copies to GPUs.

docs/backend-authors.md is the guide. Nothing here knows an executor, a scheduler, or one backend.
"""

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
