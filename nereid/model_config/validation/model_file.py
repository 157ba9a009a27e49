"""Whether a complete configuration and the model file agree; worded as Triton's backend does.

More lenient in one point: an output's dimension that either side leaves open fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.model_config.description import ModelDescription, TensorDescription

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput

_VARIABLE: Final = -1


def check_description(config: model_config_pb2.ModelConfig, description: ModelDescription) -> None:
    """Compare a valid configuration with the model file.

    Raises:
        InvalidArgument: they do not agree.
    """
    _check_input_count(config, description)
    _check_controls(config, description)
    inputs = {tensor.name: tensor for tensor in description.inputs}
    for tensor in config.input:
        _check_optional(config, tensor)
        found = _find(config, tensor, "input", inputs)
        _check_datatype(config, tensor, "input", found)
        if tensor.allow_ragged_batch:
            _check_ragged(config, tensor, found)
        elif found.dims is not None:
            _check_dims(config, tensor, found.dims, is_input=True)
    outputs = {tensor.name: tensor for tensor in description.outputs}
    scattered = {name for batch_output in config.batch_output for name in batch_output.target_name}
    for output in config.output:
        found = _find(config, output, "output", outputs)
        _check_datatype(config, output, "output", found)
        if found.dims is not None and output.name not in scattered:
            _check_dims(config, output, found.dims, is_input=False)


def _check_input_count(config: model_config_pb2.ModelConfig, description: ModelDescription) -> None:
    expected = sum(not tensor.optional for tensor in config.input) + len(config.batch_input)
    sequence = config.sequence_batching
    expected += len(sequence.control_input) + len(sequence.state)
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


def _find(
    config: model_config_pb2.ModelConfig,
    tensor: _Tensor,
    role: str,
    described: dict[str, TensorDescription],
) -> TensorDescription:
    found = described.get(tensor.name)
    if found is None:
        raise InvalidArgument(
            f"unexpected inference {role} '{tensor.name}' for model '{config.name}', "
            f"allowed {role}s are: {', '.join(sorted(described))}"
        )
    return found


def _check_datatype(
    config: model_config_pb2.ModelConfig, tensor: _Tensor, role: str, found: TensorDescription
) -> None:
    if tensor.data_type != found.datatype:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects datatype "
            f"{_type_name(tensor.data_type)} for {role} '{tensor.name}', "
            f"model provides {_type_name(found.datatype)}"
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
    if found.dims is not None and found.dims != (_VARIABLE,):
        raise InvalidArgument(f"{expectation}, model provides {_show(found.dims)}")


def _check_dims(
    config: model_config_pb2.ModelConfig,
    tensor: _Tensor,
    found: tuple[int, ...],
    *,
    is_input: bool,
) -> None:
    dims = tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    if config.max_batch_size:
        _check_batched_dims(config, tensor, (found, dims), is_input=is_input)
    elif not found:
        if any(dim != 1 for dim in dims):
            raise InvalidArgument(
                f"unable to load model '{config.name}', scalar tensor '{tensor.name}', should "
                "only provide 1 in the model configuration when the model doesn't support "
                f"batching. Model configuration provided: {_show(dims)}."
            )
    elif not _fit(dims, found, is_input=is_input):
        raise InvalidArgument(
            f"model '{config.name}', tensor '{tensor.name}': the model expects {len(found)} "
            f"dimensions (shape {_show(found)}) but the model configuration specifies "
            f"{len(dims)} dimensions (shape {_show(dims)})"
        )


def _check_batched_dims(
    config: model_config_pb2.ModelConfig,
    tensor: _Tensor,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    is_input: bool,
) -> None:
    found, dims = shapes
    place = f"model '{config.name}', tensor '{tensor.name}': "
    if found[:1] != (_VARIABLE,):
        raise InvalidArgument(
            f"{place}for the model to support batching the shape should have at least 1 "
            "dimension and the first dimension must be -1; but shape expected by the model is "
            f"{_show(found)}"
        )
    full = (_VARIABLE, *dims)
    if not _fit(full, found, is_input=is_input):
        raise InvalidArgument(
            f"{place}the model expects {len(found)} dimensions (shape {_show(found)}) but the "
            f"model configuration specifies {len(full)} dimensions (an initial batch dimension "
            "because max_batch_size > 0 followed by the explicit tensor shape, making complete "
            f"shape {_show(full)})"
        )


def _fit(dims: Sequence[int], found: Sequence[int], *, is_input: bool) -> bool:
    # The graph may take more than the configuration lets in, but an input that the configuration
    # leaves open would break a graph that does not.
    return len(dims) == len(found) and all(
        in_graph in (_VARIABLE, dim) or (dim == _VARIABLE and not is_input)
        for dim, in_graph in zip(dims, found, strict=True)
    )


def _type_name(number: int) -> str:
    values = model_config_pb2.DataType.DESCRIPTOR.values_by_number
    return values[number].name if number in values else "TYPE_INVALID"


def _show(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"
