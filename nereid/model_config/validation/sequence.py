"""Rules for the sequence batching of a configuration. Errors have Triton's texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.model_config.batching_fields import DynamicBatching, SequenceBatching
from nereid.model_config.config_field import Scope, check_message, parameter_values
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from nereid.pb.model_config_pb2 import ModelConfig, ModelSequenceBatching

_Control = model_config_pb2.ModelSequenceBatching.Control
_BOOLEAN_KINDS: Final = (
    _Control.CONTROL_SEQUENCE_START,
    _Control.CONTROL_SEQUENCE_END,
    _Control.CONTROL_SEQUENCE_READY,
)
_PAIRS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION_TYPES: Final = (
    model_config_pb2.TYPE_UINT64,
    model_config_pb2.TYPE_INT64,
    model_config_pb2.TYPE_UINT32,
    model_config_pb2.TYPE_INT32,
    model_config_pb2.TYPE_STRING,
)


def validate_sequence(config: ModelConfig, *, batch_size_open: bool = False) -> None:
    """Check a configuration that has sequence_batching; raise InvalidArgument."""
    if config.response_cache.enable:
        raise InvalidArgument(
            f"Response Cache does not currently support model {config.name} with sequence "
            "batching scheduler. Please disable the response cache."
        )
    batching = config.sequence_batching
    parameter_values(SequenceBatching, config)
    _check_control_names(config.name, batching)
    for kind in (*_BOOLEAN_KINDS, _Control.CONTROL_SEQUENCE_CORRID):
        _check_kind(config.name, batching, kind)
    for state in batching.state:
        types = [state.data_type, *(initial.data_type for initial in state.initial_state)]
        for data_type in types:
            if data_type not in NAME_OF_CONFIG_NUMBER:
                raise InvalidArgument(
                    f"sequence batching state '{state.output_name}' must specify 'data_type' for"
                    f" {config.name}"
                )
    if batching.HasField("oldest"):
        check_message(DynamicBatching, Scope(config, batching.oldest, batch_size_open))
    check_message(SequenceBatching, Scope(config, batching))


def _check_control_names(model: str, batching: ModelSequenceBatching) -> None:
    names: set[str] = set()
    for control_input in batching.control_input:
        if not control_input.name:
            raise InvalidArgument(f"sequence batching control tensor must have a name for {model}")
        if control_input.name in names:
            raise InvalidArgument(
                f"sequence batching control tensor '{control_input.name}' is specified for "
                f"multiple control kinds for {model}"
            )
        names.add(control_input.name)


def _check_kind(model: str, batching: ModelSequenceBatching, kind: _Control.Kind) -> None:
    name = _Control.Kind.Name(kind)
    controls = [
        control
        for control_input in batching.control_input
        for control in control_input.control
        if control.kind == kind
    ]
    for control in controls[:1]:
        if kind in _BOOLEAN_KINDS:
            _check_boolean(control, f"{name} for {model}")
        else:
            _check_correlation(control, model)
    if len(controls) > 1:
        raise InvalidArgument(f"sequence batching specifies multiple {name} tensors for {model}")


def _check_boolean(control: _Control, place: str) -> None:
    given = [pair for pair in _PAIRS if getattr(control, pair)]
    if not given:
        raise InvalidArgument(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {place}"
        )
    if len(given) > 1:
        raise InvalidArgument(
            "sequence batching specifies more than one from 'int32_false_true', "
            f"'fp32_false_true' and 'bool_false_true' for {place}"
        )
    if len(getattr(control, given[0])) != 2:
        raise InvalidArgument(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {place}"
        )


def _check_correlation(control: _Control, model: str) -> None:
    if any(getattr(control, pair) for pair in _PAIRS):
        raise InvalidArgument(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for CONTROL_SEQUENCE_CORRID for {model}"
        )
    if control.data_type not in _CORRELATION_TYPES:
        raise InvalidArgument(
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {model}. Allowed data "
            "types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
