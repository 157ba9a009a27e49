"""Comparison of a configuration with the model file, at completion and again at the load.

Errors are those of Triton's onnxruntime backend. More lenient than Triton: an output's dimension
fits if it is variable in the configuration or in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.shapes import VARIABLE, format_shape, shape_fits
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.backends.description import ModelDescription, TensorDescription

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput

_DIMENSIONS: Final = (
    "the model expects {found_rank} dimensions (shape {found}) but the model configuration "
    "specifies {rank} dimensions ({shape_name} {shape})"
)
_SHAPE: Final = "shape"
_BATCHED_SHAPE: Final = (
    "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
    "making complete shape"
)
# Messages for a model file without a variable first dimension, at completion and at a load.
_NO_BATCH_DIMENSION_IN_COMPLETION: Final = (
    "for the model to support batching the shape should have at least 1 dimension and the first "
    "dimension must be -1; but shape expected by the model is {found}"
)
_NO_BATCH_DIMENSION_IN_LOAD: Final = _DIMENSIONS


def check_completed(config: model_config_pb2.ModelConfig, description: ModelDescription) -> None:
    """Compare a valid configuration with the model file; raise InvalidArgument."""
    sequence = config.sequence_batching
    expected = sum(not tensor.optional for tensor in config.input)
    expected += sum(len(batch_input.target_name) for batch_input in config.batch_input)
    expected += len(sequence.control_input) + len(sequence.state)
    _check_input_count(config, expected, description)
    _check_controls(config, description)
    inputs, outputs = _by_name(description)
    for tensor in config.input:
        _check_optional(config, tensor)
        found = _find_tensor(config, tensor, "input", inputs)
        _check_datatype(config, tensor, "input", found)
        if tensor.allow_ragged_batch:
            _check_ragged(config, tensor, found)
        else:
            _check_dims(config, tensor, found, _NO_BATCH_DIMENSION_IN_COMPLETION)
    scattered = _scattered_outputs(config)
    for output in config.output:
        found = _find_tensor(config, output, "output", outputs)
        _check_datatype(config, output, "output", found)
        if output.name not in scattered:
            _check_dims(config, output, found, _NO_BATCH_DIMENSION_IN_COMPLETION)


def check_model_file(config: model_config_pb2.ModelConfig, description: ModelDescription) -> None:
    """Compare a configuration with the loaded model file; raise InvalidArgument."""
    names = {tensor.name for tensor in config.input}
    names.update(name for batch_input in config.batch_input for name in batch_input.target_name)
    names.update(control.name for control in config.sequence_batching.control_input)
    names.update(state.input_name for state in config.sequence_batching.state)
    names -= {tensor.name for tensor in description.inputs if tensor.optional}
    _check_input_count(config, len(names), description)
    inputs, outputs = _by_name(description)
    for tensor in config.input:
        found = _find_tensor(config, tensor, "input", inputs)
        _check_datatype(config, tensor, "input", found)
        if tensor.allow_ragged_batch:
            _check_ragged(config, tensor, found)
        else:
            _check_dims(config, tensor, found, _NO_BATCH_DIMENSION_IN_LOAD)
    for batch_input in config.batch_input:
        _check_batch_input(config, batch_input, inputs)
    scattered = _scattered_outputs(config)
    for output in config.output:
        found = _find_tensor(config, output, "output", outputs)
        _check_datatype(config, output, "output", found)
        if output.name not in scattered:
            _check_dims(config, output, found, _NO_BATCH_DIMENSION_IN_LOAD)


def config_type_name(datatype: str) -> str:
    """Return the name that a datatype has in configurations."""
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


_Described = dict[str, "TensorDescription"]


def _by_name(description: ModelDescription) -> tuple[_Described, _Described]:
    return (
        {tensor.name: tensor for tensor in description.inputs},
        {tensor.name: tensor for tensor in description.outputs},
    )


def _check_input_count(
    config: model_config_pb2.ModelConfig, expected: int, description: ModelDescription
) -> None:
    provided = sum(not tensor.optional for tensor in description.inputs)
    if expected != provided:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, "
            f"model provides {provided}"
        )


def _check_controls(config: model_config_pb2.ModelConfig, description: ModelDescription) -> None:
    names = {tensor.name for tensor in description.inputs}
    for control in config.sequence_batching.control_input:
        if control.name not in names:
            raise InvalidArgument(
                f"configuration specified sequence control '{control.name}', but model does not "
                "provide that input"
            )


def _check_optional(
    config: model_config_pb2.ModelConfig, tensor: model_config_pb2.ModelInput
) -> None:
    if tensor.optional and config.max_batch_size:
        raise InvalidArgument(
            f"unable to load model '{config.name}', optional input '{tensor.name}' is not "
            "supported for models that support batching"
        )


def _find_tensor(
    config: model_config_pb2.ModelConfig,
    tensor: _Tensor,
    role: str,
    described: Mapping[str, TensorDescription],
) -> TensorDescription:
    found = described.get(tensor.name)
    if found is None:
        raise InvalidArgument(
            f"unexpected inference {role} '{tensor.name}' for model '{config.name}', "
            f"allowed {role}s are: {', '.join(sorted(described))}"
        )
    return found


def _scattered_outputs(config: model_config_pb2.ModelConfig) -> frozenset[str]:
    """Return the outputs that requests' shapes split; these may have any shape."""
    return frozenset(name for output in config.batch_output for name in output.target_name)


def _check_batch_input(
    config: model_config_pb2.ModelConfig,
    batch_input: model_config_pb2.BatchInput,
    inputs: Mapping[str, TensorDescription],
) -> None:
    rank = 2 if batch_input.kind == model_config_pb2.BatchInput.BATCH_ITEM_SHAPE else 1
    for name in batch_input.target_name:
        tensor = model_config_pb2.ModelInput(name=name, data_type=batch_input.data_type)
        found = _find_tensor(config, tensor, "input", inputs)
        _check_datatype(config, tensor, "input", found)
        if found.dims is not None and (len(found.dims) != rank or found.dims[0] != VARIABLE):
            expected = (VARIABLE,) * rank
            raise InvalidArgument(
                f"unable to load model '{config.name}', configuration expects model provides input "
                f"with shape {format_shape(expected)} for batch input '{name}', model provides "
                f"{format_shape(found.dims)}"
            )


def _check_datatype(
    config: model_config_pb2.ModelConfig, tensor: _Tensor, role: str, found: TensorDescription
) -> None:
    datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "INVALID")
    if datatype != found.datatype:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects datatype "
            f"{config_type_name(datatype)} for {role} '{tensor.name}', "
            f"model provides {config_type_name(found.datatype)}"
        )


def _check_ragged(
    config: model_config_pb2.ModelConfig,
    tensor: model_config_pb2.ModelInput,
    found: TensorDescription,
) -> None:
    expectation = (
        f"unable to load model '{config.name}', configuration expects model provides input with "
        f"shape [-1] for ragged input '{tensor.name}'"
    )
    if tensor.optional:
        raise InvalidArgument(f"{expectation}, which is not supported for optional input")
    if found.dims is not None and found.dims != (VARIABLE,):
        raise InvalidArgument(f"{expectation}, model provides {format_shape(found.dims)}")


def _check_dims(
    config: model_config_pb2.ModelConfig,
    tensor: _Tensor,
    description: TensorDescription,
    no_batch_dimension: str,
) -> None:
    found = description.dims
    if found is None:
        return
    dims = tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    batching = config.max_batch_size > 0
    if not batching and not found:
        if any(dim != 1 for dim in dims):
            raise InvalidArgument(
                f"unable to load model '{config.name}', scalar tensor '{tensor.name}', should only "
                "provide 1 in the model configuration when the model doesn't support batching. "
                f"Model configuration provided: {format_shape(dims)}."
            )
        return
    shape = (VARIABLE, *dims) if batching else dims
    if batching and found[:1] != (VARIABLE,):
        text = no_batch_dimension
    # An output's dimension that the file fixes may be variable in the configuration.
    elif shape_fits(shape, found) or (
        isinstance(tensor, model_config_pb2.ModelOutput) and _outputs_fit(shape, found)
    ):
        return
    else:
        text = _DIMENSIONS
    text = text.format(
        found_rank=len(found),
        found=format_shape(found),
        rank=len(shape),
        shape_name=_BATCHED_SHAPE if batching else _SHAPE,
        shape=format_shape(shape),
    )
    raise InvalidArgument(f"model '{config.name}', tensor '{tensor.name}': {text}")


def _outputs_fit(shape: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return len(shape) == len(found) and all(
        VARIABLE in (dim, in_file) or dim == in_file
        for dim, in_file in zip(shape, found, strict=True)
    )
