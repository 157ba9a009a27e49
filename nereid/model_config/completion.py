"""Completion of a configuration from defaults and from the model file's description.

The rules are those of Triton's server core, then of its onnxruntime backend. Unlike in Triton,
named tensors without dims or data type are filled in as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import ENSEMBLE_PLATFORM
from nereid.core.tensors.datatypes import CONFIG_NUMBER
from nereid.core.tensors.shapes import VARIABLE
from nereid.model_config.backend_choice import fill_backend
from nereid.model_config.batching_fields import DynamicBatching, SequenceBatching
from nereid.model_config.config_field import Scope, complete_message
from nereid.model_config.validation.model import validate_config, validate_scheduling
from nereid.model_config.validation.model_file import check_completed
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from nereid.backends.description import ModelDescription, TensorDescription

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput
    _Tensors = (
        RepeatedCompositeFieldContainer[model_config_pb2.ModelInput]
        | RepeatedCompositeFieldContainer[model_config_pb2.ModelOutput]
    )

# A Python model's auto_complete_config may change any part.
_COMPLETES_ITSELF: Final = "python"


@dataclass(frozen=True, slots=True)
class CompletionSettings:
    """A backend's default-max-batch-size, and whether to ignore descriptions of model files."""

    default_max_batch_size: int = 4
    disable_auto_complete: bool = False


_DEFAULTS: Final = CompletionSettings()


def is_incomplete(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether the configuration lacks something that the model file may provide."""
    if config.backend == _COMPLETES_ITSELF:
        return True
    has_tensors = bool(config.input or config.batch_input) and bool(config.output)
    return not has_tensors or any(map(_is_partial, _written_tensors(config)))


def complete_config(
    config: model_config_pb2.ModelConfig,
    *,
    model_name: str,
    description: ModelDescription | None,
    settings: CompletionSettings = _DEFAULTS,
) -> model_config_pb2.ModelConfig:
    """Return a new message in which every default is set; raise InvalidArgument.

    `instance_groups.py` completes instance_group per executor. With a description, the result is
    valid and fits the model file.
    """
    completed = model_config_pb2.ModelConfig()
    completed.CopyFrom(config)
    fill_backend(completed, model_name=model_name)
    if completed.name != model_name:
        raise InvalidArgument(
            f"unexpected directory name '{model_name}' for model '{completed.name}', "
            "directory name must equal model name"
        )
    _set_defaults(completed)
    # Triton checks preferred sizes even if max_batch_size is not known yet.
    is_open = not completed.max_batch_size and is_incomplete(completed)
    validate_scheduling(completed, batch_size_open=is_open)
    if description is None:
        return completed
    if not settings.disable_auto_complete:
        _fill_from_description(completed, description, settings)
        _set_defaults(completed)
    validate_config(completed)
    check_completed(completed, description)
    return completed


def _set_defaults(config: model_config_pb2.ModelConfig) -> None:
    if config.version_policy.WhichOneof("policy_choice") is None:
        config.version_policy.latest.num_versions = 1
    if config.HasField("dynamic_batching"):
        complete_message(DynamicBatching, Scope(config, config.dynamic_batching))
    if config.HasField("sequence_batching"):
        sequence = config.sequence_batching
        complete_message(SequenceBatching, Scope(config, sequence))
        if sequence.HasField("oldest"):
            complete_message(DynamicBatching, Scope(config, sequence.oldest))
    if not config.HasField("ensemble_scheduling") and config.platform != ENSEMBLE_PLATFORM:
        optimization = config.optimization
        for name in ("input_pinned_memory", "output_pinned_memory"):
            if not optimization.HasField(name):
                getattr(optimization, name).enable = True


def _fill_from_description(
    config: model_config_pb2.ModelConfig,
    description: ModelDescription,
    settings: CompletionSettings,
) -> None:
    has_inputs = bool(config.input or config.batch_input)
    if has_inputs and config.output and not any(map(_is_partial, _written_tensors(config))):
        # As in Triton, a configuration that has all tensors keeps batch size and scheduler.
        return
    _fill_batching(config, description, settings)
    internal = _sequence_tensors(config)
    if has_inputs:
        _fill_partial(config, config.input, description.inputs)
    else:
        required = (tensor for tensor in description.inputs if not tensor.optional)
        _fill_all(config, config.input, (t for t in required if t.name not in internal))
    if config.output:
        _fill_partial(config, config.output, description.outputs)
    else:
        shown = (tensor for tensor in description.outputs if tensor.name not in internal)
        _fill_all(config, config.output, shown)


def _written_tensors(config: model_config_pb2.ModelConfig) -> list[_Tensor]:
    return [*config.input, *config.output]


def _is_partial(tensor: _Tensor) -> bool:
    return not tensor.dims or not tensor.data_type


def _sequence_tensors(config: model_config_pb2.ModelConfig) -> frozenset[str]:
    sequence = config.sequence_batching
    names = {control.name for control in sequence.control_input}
    for state in sequence.state:
        names |= {state.input_name, state.output_name}
    return frozenset(names)


def _fill_batching(
    config: model_config_pb2.ModelConfig,
    description: ModelDescription,
    settings: CompletionSettings,
) -> None:
    tensors = [tensor for tensor in description.inputs if not tensor.optional]
    tensors += description.outputs
    if not all(tensor.dims and tensor.dims[0] == VARIABLE for tensor in tensors):
        if config.max_batch_size:
            raise InvalidArgument(
                f"autofill failed for model '{config.name}': model does not support batching "
                "while non-zero max_batch_size is specified"
            )
        return
    if not config.max_batch_size and not _writes_batch_dimension(config, description):
        config.max_batch_size = max(settings.default_max_batch_size, 0)
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()


def _writes_batch_dimension(
    config: model_config_pb2.ModelConfig, description: ModelDescription
) -> bool:
    """Return whether any tensor has as many dims as in the model file.

    A max_batch_size of 0 then means that the model does not batch; Triton refuses the dims.
    """
    ragged = {tensor.name for tensor in config.input if tensor.allow_ragged_batch}
    ranks = {
        tensor.name: len(tensor.dims)
        for tensor in (*description.inputs, *description.outputs)
        if tensor.dims is not None and tensor.name not in ragged
    }
    return any(
        tensor.dims
        and not tensor.HasField("reshape")
        and ranks.get(tensor.name) == len(tensor.dims)
        for tensor in _written_tensors(config)
    )


def _fill_partial(
    config: model_config_pb2.ModelConfig,
    tensors: _Tensors,
    described: Iterable[TensorDescription],
) -> None:
    by_name = {tensor.name: tensor for tensor in described}
    for tensor in tensors:
        description = by_name.get(tensor.name)
        if description is None:
            # The unknown name is reported later, once the configuration itself is valid.
            continue
        if not tensor.data_type:
            tensor.data_type = _data_type(description)
        if not tensor.dims and not tensor.HasField("reshape"):
            _fill_dims(config, tensor, description)


def _fill_all(
    config: model_config_pb2.ModelConfig,
    tensors: _Tensors,
    described: Iterable[TensorDescription],
) -> None:
    for description in described:
        tensor = tensors.add()
        tensor.name = description.name
        tensor.data_type = _data_type(description)
        _fill_dims(config, tensor, description)


def _data_type(description: TensorDescription) -> model_config_pb2.DataType:
    number = CONFIG_NUMBER.get(description.datatype, model_config_pb2.TYPE_INVALID)
    return cast("model_config_pb2.DataType", number)


def _fill_dims(
    config: model_config_pb2.ModelConfig, tensor: _Tensor, description: TensorDescription
) -> None:
    batching = config.max_batch_size > 0
    if description.dims is None:
        # A configuration cannot express "any rank".
        tensor.dims.append(VARIABLE)
        return
    tensor.dims.extend(description.dims[1:] if batching else description.dims)
    if not tensor.dims:
        # A configuration cannot express scalars: clients send shape [1], the model gets no dims.
        tensor.dims.append(1)
        if batching:
            tensor.reshape.SetInParent()
