"""The configuration as the scheduler and the hot path read it: immutable, checked, plain types.

Built once per loaded model. Reading a protobuf field costs far more than reading these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.model_config.padding import read_padding
from nereid.model_config.validation.execution import (
    admission_target_ms,
    runs_at_most_once,
    target_p99_us,
)
from nereid.model_config.validation.model import validate_config
from nereid.model_config.validation.sequence import snapshot_interval
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.model_config.padding import Padding
    from nereid.pb.model_config_pb2 import (
        ModelDynamicBatching,
        ModelInput,
        ModelOutput,
        ModelQueuePolicy,
    )

TimeoutAction = Literal["REJECT", "DELAY"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input. dims and reshape are without the batch dimension; -1: variable."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    is_shape_tensor: bool = False
    allow_ragged: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output. dims and reshape are without the batch dimension; -1: variable."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    is_shape_tensor: bool = False


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long requests may wait, and how many. 0: no limit."""

    timeout_action: TimeoutAction = "REJECT"
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """The dynamic batcher's settings. priority_levels 0: no priorities, and no policies by level.

    preferred_batch_sizes is ascending, without repeats.
    """

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policies: Mapping[int, QueuePolicy] = field(
        default_factory=lambda: MappingProxyType({})
    )


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """The sequence batcher's settings. oldest None: the strategy is "direct", which alone has a
    minimum_slot_utilization (0: none) and the delay beside it.
    """

    max_sequence_idle_us: int = 1_000_000
    oldest: DynamicBatching | None = None
    max_candidate_sequences: int = 0
    minimum_slot_utilization: float = 0.0
    max_queue_delay_us: int = 0
    # Requests without a correlation id are sequences of their own, and the model may have a request
    # scheduled again.
    iterative: bool = False
    # Every so many requests of a sequence its implicit state is saved; 0: never.
    snapshot_interval: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A complete, valid configuration. proto is the message that it was made from; not to change.

    batching is set if the dynamic batcher is configured, sequences if the sequence batcher is.
    Fields that no request path reads are in proto only.
    """

    name: str
    platform: str
    backend: str
    max_batch_size: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    batching: DynamicBatching | None
    decoupled: bool
    response_cache: bool
    # A request that may have begun to run is not run again.
    at_most_once: bool
    proto: model_config_pb2.ModelConfig
    sequences: SequenceBatching | None = None
    padding: Padding | None = None
    # How long requests may queue before more are refused; 0: for any time; None: as the scheduler's
    # settings say.
    admission_target_ms: int | None = None
    # Of a request, from its arrival to its response; 0: there is none.
    target_p99_us: int = 0


def freeze_config(config: model_config_pb2.ModelConfig) -> ModelConfig:
    """Check a complete configuration and freeze a copy of it.

    Raises:
        InvalidArgument: the configuration is not valid.
    """
    validate_config(config)
    proto = model_config_pb2.ModelConfig()
    proto.CopyFrom(config)
    has_dynamic_batching = proto.HasField("dynamic_batching")
    return ModelConfig(
        name=proto.name,
        platform=proto.platform,
        backend=proto.backend,
        max_batch_size=proto.max_batch_size,
        inputs=tuple(map(_input, proto.input)),
        outputs=tuple(map(_output, proto.output)),
        batching=_batching(proto.dynamic_batching) if has_dynamic_batching else None,
        decoupled=proto.model_transaction_policy.decoupled,
        response_cache=proto.response_cache.enable,
        at_most_once=runs_at_most_once(proto),
        proto=proto,
        sequences=_sequences(proto) if proto.HasField("sequence_batching") else None,
        padding=read_padding(proto),
        admission_target_ms=admission_target_ms(proto),
        target_p99_us=target_p99_us(proto),
    )


def _input(tensor: ModelInput) -> InputSpec:
    return InputSpec(
        name=tensor.name,
        datatype=NAME_OF_CONFIG_NUMBER[tensor.data_type],
        dims=tuple(tensor.dims),
        reshape=_reshape(tensor),
        optional=tensor.optional,
        is_shape_tensor=tensor.is_shape_tensor,
        allow_ragged=tensor.allow_ragged_batch,
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


def _batching(batching: ModelDynamicBatching) -> DynamicBatching:
    policies = sorted(batching.priority_queue_policy.items())
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(set(batching.preferred_batch_size))),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policies=MappingProxyType(
            {level: _queue_policy(policy) for level, policy in policies}
            if batching.priority_levels
            else {}
        ),
    )


def _sequences(config: model_config_pb2.ModelConfig) -> SequenceBatching:
    batching = config.sequence_batching
    idle_us = batching.max_sequence_idle_microseconds
    interval = snapshot_interval(config)
    if not batching.HasField("oldest"):
        direct = batching.direct
        return SequenceBatching(
            max_sequence_idle_us=idle_us,
            minimum_slot_utilization=direct.minimum_slot_utilization,
            max_queue_delay_us=direct.max_queue_delay_microseconds,
            iterative=batching.iterative_sequence,
            snapshot_interval=interval,
        )
    oldest = batching.oldest
    return SequenceBatching(
        max_sequence_idle_us=idle_us,
        oldest=DynamicBatching(
            preferred_batch_sizes=tuple(sorted(set(oldest.preferred_batch_size))),
            max_queue_delay_us=oldest.max_queue_delay_microseconds,
            preserve_ordering=oldest.preserve_ordering,
        ),
        max_candidate_sequences=oldest.max_candidate_sequences,
        iterative=batching.iterative_sequence,
        snapshot_interval=interval,
    )


def _queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    delays = policy.timeout_action == model_config_pb2.ModelQueuePolicy.DELAY
    return QueuePolicy(
        timeout_action="DELAY" if delays else "REJECT",
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )
