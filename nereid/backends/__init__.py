"""The contract between an executor and a backend, which backend authors implement.

A backend is a module, or any object, with the functions of Backend. A package registers its
backends under the entry point group "nereid.backends". Most backends return a Model, which executes
whole batches as numpy arrays and never sees single requests. A backend returns a RequestModel
instead if its models need the requests themselves, or respond to each request in their own time.
Capabilities declares everything else that a model can do.

Some modules are for authors' convenience and are imported by name: parameters, model_file,
shared_models, request_arrays, and device_io for copies to GPUs.

docs/backend-authors.md is the guide. This package depends on no executor, no scheduler and no
single backend.
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
