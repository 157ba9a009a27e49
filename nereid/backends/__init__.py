"""The contract between an executor and a backend: what a backend author implements.

A backend is a module, or any object, with the functions of Backend; a package offers its own by the
entry point group "nereid.backends". Most backends return a Model, which executes whole batches as
numpy arrays and knows nothing of requests. A backend whose models need the requests themselves, or
respond to each in their own time, returns a RequestModel.

docs/backend-authors.md is the guide. Nothing here knows an executor, a scheduler, or one backend.
"""

from nereid.backends.backend import Backend, InstanceSpec, Model
from nereid.backends.description import EMPTY_DESCRIPTION, ModelDescription, TensorDescription
from nereid.backends.mesh import MeshClient, MeshRequest, RequestControl
from nereid.backends.pipelined_model import PipelinedModel, TensorParts
from nereid.backends.request_model import (
    BatchUpdate,
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
    "BatchUpdate",
    "InstanceSpec",
    "MeshClient",
    "MeshRequest",
    "Model",
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
]
