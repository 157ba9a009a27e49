"""Rules for a configuration's inputs and outputs. Unlike Triton, names must be unique."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import TENSORRT_PLATFORM
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.shapes import VARIABLE
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from nereid.pb.model_config_pb2 import ModelConfig

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput

_DIMENSION_RULE: Final = "must be integer >= 1, or -1 to indicate a variable-size dimension"
_IMAGE_FORMATS: Final = (
    model_config_pb2.ModelInput.FORMAT_NHWC,
    model_config_pb2.ModelInput.FORMAT_NCHW,
)
_BATCH_INPUT_TYPES: Final = (model_config_pb2.TYPE_INT32, model_config_pb2.TYPE_FP32)


def validate_tensors(config: ModelConfig) -> None:
    """Check every tensor of the configuration; raise InvalidArgument."""
    try:
        for tensor in config.input:
            _check_shape(tensor, "model input ", config.max_batch_size)
            if tensor.format in _IMAGE_FORMATS and len(tensor.dims) != 3:
                raise InvalidArgument("model input NHWC/NCHW require 3 dims")
            _check_platform(tensor, "input", config.platform)
        for output in config.output:
            _check_shape(output, "model output ", config.max_batch_size)
            _check_platform(output, "output", config.platform)
        _check_unique("input", config.input)
        _check_unique("output", config.output)
        _check_batch_inputs(config)
        _check_batch_outputs(config)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message} for {config.name}") from None


def _check_shape(tensor: _Tensor, prefix: str, max_batch_size: int) -> None:
    if not tensor.name:
        raise InvalidArgument(f"{prefix}must specify 'name'")
    subject = f"{prefix}'{tensor.name}' "
    # A number that is not in the enum counts as missing.
    if tensor.data_type not in NAME_OF_CONFIG_NUMBER:
        raise InvalidArgument(f"{subject}must specify 'data_type'")
    if not tensor.dims:
        raise InvalidArgument(f"{subject}must specify 'dims'")
    reshape = tensor.reshape.shape
    if tensor.HasField("reshape") and not reshape and not max_batch_size:
        raise InvalidArgument(
            f"{subject}cannot have empty reshape for non-batching model as scalar tensors are not "
            "supported"
        )
    if not all(map(_is_dimension, tensor.dims)):
        raise InvalidArgument(f"{subject}dimension {_DIMENSION_RULE}")
    if tensor.HasField("reshape"):
        if not all(map(_is_dimension, reshape)):
            raise InvalidArgument(f"{subject}reshape dimensions {_DIMENSION_RULE}")
        _check_reshape(subject, tensor.dims, reshape)


def _is_dimension(dim: int) -> bool:
    return dim >= 1 or dim == VARIABLE


def _check_reshape(subject: str, dims: Sequence[int], reshape: Sequence[int]) -> None:
    """Check for equal element counts between variable dimensions."""
    in_dims, in_reshape = _counts_between_wildcards(dims), _counts_between_wildcards(reshape)
    both_vary = len(in_dims) > 1 and len(in_reshape) > 1
    if both_vary and len(in_dims) != len(in_reshape):
        raise InvalidArgument(
            f"{subject}has different number of variable-size dimensions for dims and reshape"
        )
    if in_dims != in_reshape:
        raise InvalidArgument(f"{subject}has different size for dims and reshape")


def _counts_between_wildcards(dims: Sequence[int]) -> list[int]:
    counts = [1]
    for dim in dims:
        if dim == VARIABLE:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _check_platform(tensor: _Tensor, role: str, platform: str) -> None:
    if tensor.is_shape_tensor and platform != TENSORRT_PLATFORM:
        raise InvalidArgument("shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io:
        if platform != TENSORRT_PLATFORM:
            raise InvalidArgument(
                "Non-linear IO format is only supported for the TensorRT platform"
            )
        if len(tensor.dims) != 3:
            raise InvalidArgument(f"Non-linear IO format {role} requires 3 dims")


def _check_unique(role: str, tensors: Iterable[_Tensor]) -> None:
    # Triton loads such a model, but no request to it can be valid.
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise InvalidArgument(f"model {role} '{tensor.name}' is specified more than once")
        names.add(tensor.name)


def _check_batch_inputs(config: ModelConfig) -> None:
    for batch_input in config.batch_input:
        kind = _kind_name(model_config_pb2.BatchInput.Kind, batch_input.kind, "input")
        _check_one_source(f"batch input kind '{kind}'", batch_input.source_input)
        if batch_input.data_type not in _BATCH_INPUT_TYPES:
            raise InvalidArgument("batch input data type must be TYPE_INT32 or TYPE_FP32")
        _check_sources(config, batch_input.source_input)


def _check_batch_outputs(config: ModelConfig) -> None:
    output_names = {tensor.name for tensor in config.output}
    for batch_output in config.batch_output:
        kind = _kind_name(model_config_pb2.BatchOutput.Kind, batch_output.kind, "output")
        _check_one_source(f"batch output kind '{kind}'", batch_output.source_input)
        _check_sources(config, batch_output.source_input)
        targets: set[str] = set()
        for name in batch_output.target_name:
            if name not in output_names:
                raise InvalidArgument(f"unknown target output name '{name}'")
            if name in targets:
                raise InvalidArgument(f"target output name '{name}' can only be specified once")
            targets.add(name)


def _kind_name(
    kinds: type[model_config_pb2.BatchInput.Kind | model_config_pb2.BatchOutput.Kind],
    number: int,
    role: str,
) -> str:
    values = kinds.DESCRIPTOR.values_by_number
    if number not in values:
        raise InvalidArgument(f"unknown batch {role} kind '{number}'")
    return str(values[number].name)


def _check_one_source(subject: str, sources: Collection[str]) -> None:
    if len(sources) != 1:
        raise InvalidArgument(f"{subject} expects 1 source input, got {len(sources)}")


def _check_sources(config: ModelConfig, sources: Iterable[str]) -> None:
    input_names = {tensor.name for tensor in config.input}
    for name in sources:
        if name not in input_names:
            raise InvalidArgument(f"unknown source input name '{name}'")
