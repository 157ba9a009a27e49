"""All names that model.py files can import from triton_python_backend_utils."""

from __future__ import annotations

# These modules are names of the API too, for files that import everything with `*`.
import json
import struct

import numpy as np

from ..values.errors import TritonError, TritonModelException
from .datatypes import (
    _CONFIG_TYPES as TRITON_STRING_TO_NUMPY,
)
from .datatypes import (
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from .logger import Logger
from .metrics import Metric, MetricFamily
from .model_calls import get_model_dir, is_model_ready, load_model, unload_model
from .model_config import (
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from .requests import (
    MEMORY_CPU as TRITONSERVER_MEMORY_CPU,
)
from .requests import (
    MEMORY_GPU as TRITONSERVER_MEMORY_GPU,
)
from .requests import (
    RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL,
)
from .requests import (
    RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
)
from .requests import (
    InferenceRequest,
    InferenceTrace,
    PreferredMemory,
    get_input_tensor_by_name,
    get_output_tensor_by_name,
)
from .responses import FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL
from .responses import InferenceResponse, InferenceResponseSender
from .tensors import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "json",
    "load_model",
    "np",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "struct",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

for _made in (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    Logger,
    Metric,
    MetricFamily,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
):
    # With this module name, texts with the classes' names are the same as on Triton.
    _made.__module__ = "c_python_backend_utils"
