"""Whether a configuration and a model file agree; wording near Triton's.

Pure. Lenient where Triton is not: an output whose dims the graph leaves open may be fixed in the
configuration, and the reverse, since each execution checks what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.errors import InvalidArgument, Unimplemented

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.backends import ModelDescription, TensorDescription
    from nereid.pb import model_config_pb2

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput

_ANY = -1


def check(config: model_config_pb2.ModelConfig, description: ModelDescription) -> None:
    """Compare them.

    Raises:
        InvalidArgument: the configuration does not fit the model file.
        Unimplemented: the configuration asks for what executors cannot do.
    """
    _refuse_ragged(config)
    _check_input_count(config, description)
    _check_tensors(config, "input", config.input, description.inputs)
    _check_tensors(config, "output", config.output, description.outputs)


def _refuse_ragged(config: model_config_pb2.ModelConfig) -> None:
    if config.batch_input or config.batch_output or any(i.allow_ragged_batch for i in config.input):
        raise Unimplemented(
            f"unable to load model '{config.name}', ragged batches (allow_ragged_batch, "
            "batch_input, batch_output) are not supported"
        )


def _check_input_count(config: model_config_pb2.ModelConfig, description: ModelDescription) -> None:
    names = [tensor.name for tensor in config.input]
    names += [control.name for control in config.sequence_batching.control_input]
    names += [state.input_name for state in config.sequence_batching.state]
    required = {tensor.name for tensor in description.inputs if not tensor.optional}
    optional = {tensor.name for tensor in description.inputs if tensor.optional}
    expected = len(set(names) - optional)
    if expected != len(required):
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, "
            f"model provides {len(required)}"
        )


def _check_tensors(
    config: model_config_pb2.ModelConfig,
    role: str,
    configured: Sequence[_Tensor],
    described: Sequence[TensorDescription],
) -> None:
    by_name = {tensor.name: tensor for tensor in described}
    for tensor in configured:
        found = by_name.get(tensor.name)
        if found is None:
            allowed = ", ".join(sorted(by_name))
            raise InvalidArgument(
                f"unexpected inference {role} '{tensor.name}' for model '{config.name}', "
                f"allowed {role}s are: {allowed}"
            )
        datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "INVALID")
        if datatype != found.datatype:
            raise InvalidArgument(
                f"unable to load model '{config.name}', configuration expects datatype "
                f"{type_name(datatype)} for {role} '{tensor.name}', "
                f"model provides {type_name(found.datatype)}"
            )
        if found.dims is not None:
            _check_dims(config, tensor, found.dims, is_input=role == "input")


def type_name(datatype: str) -> str:
    """A datatype as configurations write it."""
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


def _check_dims(
    config: model_config_pb2.ModelConfig, tensor: _Tensor, found: tuple[int, ...], *, is_input: bool
) -> None:
    dims = tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    batching = config.max_batch_size > 0
    if not batching and not found:
        if any(dim != 1 for dim in dims):
            raise InvalidArgument(
                f"unable to load model '{config.name}', scalar tensor '{tensor.name}', should only "
                "provide 1 in the model configuration when the model doesn't support batching. "
                f"Model configuration provided: {show(dims)}."
            )
        return
    full = (_ANY, *dims) if batching else dims
    batch_fits = not batching or found[:1] == (_ANY,)
    fits = batch_fits and len(full) == len(found)
    if not fits or not all(map(_fits_input if is_input else _fits_output, full, found)):
        complete = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            f"shape, making complete shape {show(full)}"
            if batching
            else f"shape {show(full)}"
        )
        raise InvalidArgument(
            f"model '{config.name}', tensor '{tensor.name}': the model expects {len(found)} "
            f"dimensions (shape {show(found)}) but the model configuration specifies {len(full)} "
            f"dimensions ({complete})"
        )


def _fits_input(dim: int, found: int) -> bool:
    return found in (_ANY, dim)


def _fits_output(dim: int, found: int) -> bool:
    return _ANY in (dim, found) or dim == found


def show(dims: Sequence[int]) -> str:
    """A shape as Triton prints it."""
    return "[" + ",".join(map(str, dims)) + "]"
