"""The OpenVINO backend: models in OpenVINO's own format (model.xml), on CPUs.

With default_model_filename it also reads ONNX, TensorFlow, PaddlePaddle and TensorFlow Lite files.
OpenVINO has no strings. On CPUs it computes FP64 in FP32, and 64-bit integers in 32 bits.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import openvino

from nereid.backends import (
    BackendCapabilities,
    InstanceSpec,
    ModelDescription,
    TensorDescription,
)
from nereid.backends.model_file import find_model_file
from nereid.backends.parameters import (
    parameters_of,
    parse_boolean,
    parse_threads,
)
from nereid.core.errors import Internal, InvalidArgument, Unavailable, cause_of
from nereid.model_config import check_model_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nereid.core.tensors.tensors import Array
    from nereid.pb import model_config_pb2

DEFAULT_FILENAME: Final = "model.xml"

_DATATYPE: Final = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    "bf16": "BF16",
}
_PROPERTIES: Final = ("PERFORMANCE_HINT", "NUM_STREAMS")
_EXTENSION: Final = "CPU_EXTENSION_PATH"
_THREADS: Final = "INFERENCE_NUM_THREADS"
_COMPILATION_THREADS: Final = "COMPILATION_NUM_THREADS"
_ERRORS: Final = (RuntimeError, ValueError, TypeError)


def loads_native_code(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether the model has a library with operators of its own."""
    return _EXTENSION in config.parameters


capabilities: Final = BackendCapabilities(loads_native_code=loads_native_code)


def uses_gpus() -> bool:
    """Return False: OpenVINO does not support NVIDIA's GPUs."""
    return False


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """Return the graph's inputs and outputs, reshaped if the configuration asks for it."""
    return _describe(config, _read(config, version_path, openvino.Core()))


def load(spec: InstanceSpec) -> OpenVinoModel:
    """Return a newly compiled model."""
    config = spec.config
    if spec.gpu is not None:
        raise Unavailable(
            f"unable to load model '{config.name}', OpenVINO cannot use GPU {spec.gpu}"
        )
    # Each model gets its own Core: extensions that a model adds to a Core are never removed.
    core = openvino.Core()
    parameters = parameters_of(config)
    model = _read(config, spec.version_path, core)
    description = _describe(config, model)
    check_model_file(config, description)
    device = parameters.get("TARGET_DEVICE", "CPU")
    with _translated_errors(f"failed to load '{config.name}': "):
        compiled = core.compile_model(
            model, device, _properties(config, parameters, device, spec.threads)
        )
        return OpenVinoModel(compiled.create_infer_request(), description)


def _properties(
    config: model_config_pb2.ModelConfig, parameters: Mapping[str, str], device: str, threads: int
) -> dict[str, Any]:
    """Return OpenVINO's properties. A configured number of threads overrides `threads`."""
    properties: dict[str, Any] = {}
    for name in _PROPERTIES:
        if name in parameters:
            properties[name] = parameters[name].upper()
    if _THREADS in parameters:
        properties[_THREADS] = parse_threads(config, parameters, _THREADS)
    elif threads and device == "CPU":
        properties[_THREADS] = threads
    if _COMPILATION_THREADS in parameters:
        threads = parse_threads(config, parameters, _COMPILATION_THREADS)
        properties[_COMPILATION_THREADS] = threads
    if parse_boolean(config, parameters, "HINT_BF16", default=False):
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    return properties


def _read(
    config: model_config_pb2.ModelConfig, version_path: Path, core: openvino.Core
) -> openvino.Model:
    path = find_model_file(config, version_path, DEFAULT_FILENAME)
    parameters = parameters_of(config)
    with _translated_errors(f"failed to load '{config.name}': "):
        if _EXTENSION in parameters:
            core.add_extension(parameters[_EXTENSION])
        model = core.read_model(path)
        shapes = _shapes(config, parameters, model)
        if shapes:
            model.reshape(shapes)
        return model


def _shapes(
    config: model_config_pb2.ModelConfig, parameters: Mapping[str, str], model: openvino.Model
) -> dict[int, list[int]]:
    batching = config.max_batch_size > 0
    if parse_boolean(config, parameters, "RESHAPE_IO_LAYERS", default=False):
        wanted = {
            tensor.name: [-1] if tensor.allow_ragged_batch else [-1] * batching + list(tensor.dims)
            for tensor in config.input
        }
        return {
            index: wanted[name]
            for index, node in enumerate(model.inputs)
            for name in _names(node)
            if name in wanted
        }
    skipped = parse_boolean(config, parameters, "SKIP_OV_DYNAMIC_BATCHSIZE", default=False)
    shapes = {index: _dims(node) for index, node in enumerate(model.inputs)}
    return {
        index: [-1, *dims[1:]]
        for index, dims in shapes.items()
        if batching and not skipped and dims and dims[0] != -1
    }


def _describe(config: model_config_pb2.ModelConfig, model: openvino.Model) -> ModelDescription:
    return ModelDescription(
        tuple(_describe_tensor(config, "input", node, config.input) for node in model.inputs),
        tuple(_describe_tensor(config, "output", node, config.output) for node in model.outputs),
    )


def _describe_tensor(
    config: model_config_pb2.ModelConfig,
    role: str,
    node: Any,
    configured: Iterable[model_config_pb2.ModelInput | model_config_pb2.ModelOutput],
) -> TensorDescription:
    names = _names(node)
    name = next((tensor.name for tensor in configured if tensor.name in names), names[0])
    datatype = _DATATYPE.get(node.element_type.to_string())
    if datatype is None:
        raise InvalidArgument(
            f"unable to load model '{config.name}', unsupported datatype "
            f"'{node.element_type.to_string()}' for {role} '{name}'"
        )
    return TensorDescription(name, datatype, _dims(node))


def _names(node: Any) -> list[str]:
    return sorted(node.names) or [node.node.friendly_name]


def _dims(node: Any) -> tuple[int, ...] | None:
    shape = node.partial_shape
    if shape.rank.is_dynamic:
        return None
    return tuple(-1 if dim.is_dynamic else dim.get_length() for dim in shape)


class OpenVinoModel:
    """The inference request of a compiled model; only its instance's thread uses it."""

    def __init__(self, request: openvino.InferRequest, description: ModelDescription) -> None:
        self.description = description
        self._request = request
        self._inputs = {
            tensor.name: (index, tensor.datatype == "BF16")
            for index, tensor in enumerate(description.inputs)
        }
        self._outputs = {
            tensor.name: (index, tensor.datatype == "BF16")
            for index, tensor in enumerate(description.outputs)
        }

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Return the named outputs in the names' order; raise NereidError if the model fails."""
        tensors: dict[int, Array | openvino.Tensor] = {}
        for name, array in inputs.items():
            index, is_bf16 = self._inputs[name]
            tensors[index] = _bf16_tensor(array) if is_bf16 else array
        with _translated_errors():
            self._request.infer(tensors, share_outputs=True)
            return [self._output(*self._outputs[name]) for name in outputs]

    def close(self) -> None:
        """Free the inference request."""
        del self._request

    def _output(self, index: int, is_bf16: bool) -> Array:
        """Return a view of an output, which the next execution overwrites."""
        array: Array = self._request.get_output_tensor(index).data
        # numpy has no bfloat16, so OpenVINO labels such data as float16.
        return array.view(np.uint16) if is_bf16 else array


def _bf16_tensor(array: Array) -> openvino.Tensor:
    return openvino.Tensor(array, list(array.shape), openvino.Type.bf16)


@contextmanager
def _translated_errors(prefix: str = "") -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise Internal(f"{prefix}openvino error: {cause_of(error)}") from error
