"""The configuration as the hot path reads it, since reading a protobuf field costs far more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.model_config.batching_fields import (
    DynamicBatching,
    ModelParameters,
    SequenceBatching,
    read_dynamic_batching,
    read_sequence_batching,
)
from nereid.model_config.config_field import parameter_values
from nereid.model_config.defaults import read_input_defaults
from nereid.model_config.padding import read_padding
from nereid.model_config.validation.model import validate_config
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from nereid.model_config.defaults import DefaultInput
    from nereid.model_config.padding import Padding
    from nereid.pb.model_config_pb2 import ModelInput, ModelOutput


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input. dims and reshape leave out the batch dimension; -1 is a variable dimension."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    is_shape_tensor: bool = False
    allow_ragged: bool = False
    # One row of an omitted optional input.
    default: DefaultInput | None = None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output. dims and reshape leave out the batch dimension; -1 is a variable dimension."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    is_shape_tensor: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig(ModelParameters):
    """A complete, valid configuration. proto must not be changed."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    batching: DynamicBatching | None
    decoupled: bool
    response_cache: bool
    proto: model_config_pb2.ModelConfig
    sequences: SequenceBatching | None = None
    padding: Padding | None = None


def freeze_config(config: model_config_pb2.ModelConfig) -> ModelConfig:
    """Check a complete configuration and return a frozen copy, or raise InvalidArgument."""
    validate_config(config)
    proto = model_config_pb2.ModelConfig()
    proto.CopyFrom(config)
    defaults = read_input_defaults(proto)
    return ModelConfig(
        name=proto.name,
        platform=proto.platform,
        backend=proto.backend,
        max_batch_size=proto.max_batch_size,
        inputs=tuple(_input(tensor, defaults.get(tensor.name)) for tensor in proto.input),
        outputs=tuple(map(_output, proto.output)),
        batching=read_dynamic_batching(proto),
        decoupled=proto.model_transaction_policy.decoupled,
        response_cache=proto.response_cache.enable,
        proto=proto,
        sequences=read_sequence_batching(proto),
        padding=read_padding(proto),
        **parameter_values(ModelParameters, proto),
    )


def _input(tensor: ModelInput, default: DefaultInput | None) -> InputSpec:
    return InputSpec(
        name=tensor.name,
        datatype=NAME_OF_CONFIG_NUMBER[tensor.data_type],
        dims=tuple(tensor.dims),
        reshape=_reshape(tensor),
        optional=tensor.optional,
        is_shape_tensor=tensor.is_shape_tensor,
        allow_ragged=tensor.allow_ragged_batch,
        default=default,
    )


def _output(tensor: ModelOutput) -> OutputSpec:
    return OutputSpec(
        name=tensor.name,
        datatype=NAME_OF_CONFIG_NUMBER[tensor.data_type],
        dims=tuple(tensor.dims),
        reshape=_reshape(tensor),
        is_shape_tensor=tensor.is_shape_tensor,
    )


def _reshape(tensor: ModelInput | ModelOutput) -> tuple[int, ...] | None:
    return tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
