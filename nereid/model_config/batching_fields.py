"""The fields with which a model controls how requests are queued, batched and repeated.

To add a field, add a row (see `config_field.py`) and use the frozen value.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from nereid.comparison.shadow import Shadow, check_other_model, parse_shadow
from nereid.config.flags import boolean, integer
from nereid.core.errors import InvalidArgument
from nereid.core.traffic.weights import Traffic, parse_traffic
from nereid.model_config.config_field import (
    Advice,
    MessageField,
    Parameter,
    Scope,
    config_field,
    message_values,
    parameter_values,
    parameters_of,
)
from nereid.model_config.padding import PADDING, count_padded_sizes
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy

TimeoutAction = Literal["REJECT", "DELAY"]

TARGET_P99_US: Final = "target_p99_us"
AT_MOST_ONCE: Final = "at_most_once"
TRAFFIC: Final = "traffic"
SHADOW: Final = "shadow"
MAX_BATCH_TOKENS: Final = "max_batch_tokens"

_SNAPSHOT_INTERVAL: Final = "sequence_snapshot_interval"
_MAX_DIGITS: Final = 10
_DELAY: Final = model_config_pb2.ModelQueuePolicy.DELAY


def _action(policy: ModelQueuePolicy) -> TimeoutAction:
    return "DELAY" if policy.timeout_action == _DELAY else "REJECT"


def _overrides_nothing(policy: ModelQueuePolicy) -> bool:
    return policy.allow_timeout_override and not policy.default_timeout_microseconds


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Limits on the time and the number of requests in a queue; 0 means no limit."""

    timeout_action: TimeoutAction = config_field(  # noqa: RUF009 (a dataclass field)
        MessageField("timeout_action", "REJECT", read=_action)
    )
    default_timeout_us: int = config_field(MessageField("default_timeout_microseconds", 0))
    allow_timeout_override: bool = config_field(
        MessageField(
            "allow_timeout_override",
            default=False,
            advice=Advice(
                "timeout-override",
                "allow_timeout_override has no effect while default_timeout_microseconds is 0",
                "set default_timeout_microseconds: clients' timeouts may be shorter than that",
                applies=_overrides_nothing,
                is_warning=True,
            ),
        )
    )
    max_queue_size: int = config_field(MessageField("max_queue_size", 0))


def _policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(**message_values(QueuePolicy, policy))


def _complete_preferred(scope: Scope) -> None:
    sizes = scope.message.preferred_batch_size
    if not sizes and scope.config.max_batch_size > 0:
        sizes.append(scope.config.max_batch_size)


def _check_preferred(scope: Scope) -> None:
    config = scope.config
    sizes = (
        "dynamic batching preferred size"
        if _is_dynamic(scope.message)
        else "sequence batching preferred batch size"
    )
    for size in scope.message.preferred_batch_size:
        if size <= 0:
            raise InvalidArgument(f"{sizes} must be positive for {config.name}")
        if size > config.max_batch_size and not scope.batch_size_open:
            raise InvalidArgument(f"{sizes} must be <= max batch size for {config.name}")


def _prefers_smaller(scope: Scope) -> bool:
    return bool(set(scope.message.preferred_batch_size) - {scope.config.max_batch_size})


def _has_delay(scope: Scope) -> bool:
    return bool(scope.message.max_queue_delay_microseconds)


def _waits_for_none(batching: ModelDynamicBatching) -> bool:
    return not batching.max_queue_delay_microseconds


def _check_default_level(scope: Scope) -> None:
    levels = scope.message.priority_levels
    if levels and not 1 <= scope.message.default_priority_level <= levels:
        raise InvalidArgument(
            f"default priority level must be in range [1, {levels}] for {scope.config.name}"
        )


def _check_policy_levels(scope: Scope) -> None:
    levels = scope.message.priority_levels
    if levels and not all(1 <= level <= levels for level in scope.message.priority_queue_policy):
        raise InvalidArgument(
            f"priority queue policy must have priority level in range [1, {levels}] for "
            f"{scope.config.name}"
        )


def _policies(batching: ModelDynamicBatching) -> Mapping[int, QueuePolicy]:
    policies = sorted(batching.priority_queue_policy.items())
    return MappingProxyType(
        {level: _policy(policy) for level, policy in policies} if batching.priority_levels else {}
    )


def _check_ordering(scope: Scope) -> None:
    batching, name = scope.message, scope.config.name
    # The strategy "oldest" has neither priority levels nor queue policies.
    if not (batching.preserve_ordering and _is_dynamic(batching)):
        return
    if batching.priority_levels > 1:
        raise InvalidArgument(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        )
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    if any(
        policy.default_timeout_microseconds and policy.timeout_action == _DELAY
        for policy in policies
    ):
        raise InvalidArgument(
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true "
            f"for {name}"
        )


def _is_dynamic(message: Any) -> bool:
    return isinstance(message, model_config_pb2.ModelDynamicBatching)


def _check_tokens(config: model_config_pb2.ModelConfig, tokens: int) -> None:  # noqa: ARG001 - of Parameter
    if count_padded_sizes(config) != 1 or config.HasField("sequence_batching"):
        raise InvalidArgument(
            f"parameter '{MAX_BATCH_TOKENS}' of model '{config.name}' needs dynamic_batching and"
            f" the parameter {PADDING} with one size"
        )


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Settings of the dynamic batcher. Without priorities, priority_levels is 0."""

    preferred_batch_sizes: tuple[int, ...] = config_field(
        MessageField(
            "preferred_batch_size",
            (),
            read=lambda batching: tuple(sorted(set(batching.preferred_batch_size))),
            complete=_complete_preferred,
            check=_check_preferred,
            is_scanned=True,
            decided_by_target=_prefers_smaller,
        )
    )
    max_queue_delay_us: int = config_field(
        MessageField(
            "max_queue_delay_microseconds",
            0,
            decided_by_target=_has_delay,
            advice=Advice(
                "no-queue-delay",
                "max_queue_delay_microseconds is 0: requests share a batch only if they wait while"
                " all instances execute",
                "a delay, say 500, has a lone request wait for others",
                applies=_waits_for_none,
            ),
        )
    )
    priority_levels: int = config_field(MessageField("priority_levels", 0))
    default_priority_level: int = config_field(
        MessageField("default_priority_level", 0, check=_check_default_level)
    )
    default_queue_policy: QueuePolicy = config_field(  # noqa: RUF009 (a dataclass field)
        MessageField(
            "default_queue_policy",
            QueuePolicy(),
            read=lambda batching: _policy(batching.default_queue_policy),
        )
    )
    priority_queue_policies: Mapping[int, QueuePolicy] = config_field(
        MessageField(
            "priority_queue_policy",
            MappingProxyType({}),
            read=_policies,
            check=_check_policy_levels,
        )
    )
    preserve_ordering: bool = config_field(
        MessageField("preserve_ordering", default=False, check=_check_ordering)
    )
    # Maximum number of padded tokens in a batch, its rows times its longest length; 0 means that
    # batches have requests of one padded size, and no maximum.
    max_batch_tokens: int = config_field(Parameter(MAX_BATCH_TOKENS, 0, integer(1), _check_tokens))


def read_dynamic_batching(config: model_config_pb2.ModelConfig) -> DynamicBatching | None:
    """Return the frozen dynamic_batching of a valid configuration; `None` if it has none."""
    if not config.HasField("dynamic_batching"):
        return None
    return DynamicBatching(
        **message_values(DynamicBatching, config.dynamic_batching),
        **parameter_values(DynamicBatching, config),
    )


def _complete_idle(scope: Scope) -> None:
    if not scope.message.max_sequence_idle_microseconds:
        scope.message.max_sequence_idle_microseconds = SequenceBatching().max_sequence_idle_us


def _oldest(batching: model_config_pb2.ModelSequenceBatching) -> DynamicBatching | None:
    if not batching.HasField("oldest"):
        return None
    return DynamicBatching(**message_values(DynamicBatching, batching.oldest))


def _check_utilization(scope: Scope) -> None:
    # NaN must fail this comparison.
    if not 0.0 <= scope.message.direct.minimum_slot_utilization <= 1.0:
        raise InvalidArgument(
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for "
            f"{scope.config.name}"
        )


def _count_of_requests(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS):
        raise ValueError("expected a number of requests")
    return int(text)


def _check_snapshots(config: model_config_pb2.ModelConfig, interval: int) -> None:
    batching = config.sequence_batching
    # The state of a decoupled or iterative model may change with any response.
    moves = not (config.model_transaction_policy.decoupled or batching.iterative_sequence)
    if interval and not (batching.state and moves):
        raise InvalidArgument(
            f"parameter '{_SNAPSHOT_INTERVAL}' of model '{config.name}' needs a state in"
            " sequence_batching, and a model that is neither decoupled nor iterative"
        )


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """Settings of the sequence batcher; `oldest` is `None` for the strategy "direct".

    minimum_slot_utilization (0: no minimum) and max_queue_delay_us apply only to "direct".
    """

    max_sequence_idle_us: int = config_field(
        MessageField("max_sequence_idle_microseconds", 1_000_000, complete=_complete_idle)
    )
    oldest: DynamicBatching | None = config_field(  # noqa: RUF009 (a dataclass field)
        MessageField("oldest", None, read=_oldest)
    )
    max_candidate_sequences: int = config_field(MessageField("oldest.max_candidate_sequences", 0))
    minimum_slot_utilization: float = config_field(
        MessageField("direct.minimum_slot_utilization", 0.0, check=_check_utilization)
    )
    max_queue_delay_us: int = config_field(MessageField("direct.max_queue_delay_microseconds", 0))
    # True if a request without a correlation id is a sequence, and may be rescheduled.
    iterative: bool = config_field(MessageField("iterative_sequence", default=False))
    # Requests between two snapshots of a sequence's implicit state; 0 means no snapshots.
    snapshot_interval: int = config_field(
        Parameter(_SNAPSHOT_INTERVAL, 0, _count_of_requests, _check_snapshots)
    )


def read_sequence_batching(config: model_config_pb2.ModelConfig) -> SequenceBatching | None:
    """Return the frozen sequence_batching of a valid configuration; `None` if it has none."""
    if not config.HasField("sequence_batching"):
        return None
    return SequenceBatching(
        **message_values(SequenceBatching, config.sequence_batching),
        **parameter_values(SequenceBatching, config),
    )


def _check_shadow(config: model_config_pb2.ModelConfig, shadow: Shadow) -> None:
    try:
        check_other_model(config.name, shadow)
    except ValueError as error:
        raise InvalidArgument(f"parameter '{SHADOW}': {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """Nereid's own parameters, which any model may have."""

    # True if a request that may have begun to run must not be run again.
    at_most_once: bool = config_field(Parameter(AT_MOST_ONCE, default=False, parse=boolean))
    # Requests may queue for this long before others are refused. 0 means no limit; `None` leaves it
    # to the scheduler's settings.
    admission_target_ms: int | None = config_field(
        Parameter("admission_target_ms", None, integer(0), decided_by_target=True)
    )
    # Target for the p99 from a request's arrival to its response; 0 means none.
    target_p99_us: int = config_field(Parameter(TARGET_P99_US, 0, integer(0)))
    # Versions that requests without a version go to; `None` means the latest.
    traffic: Traffic | None = config_field(  # noqa: RUF009 (a dataclass field)
        Parameter(TRAFFIC, None, parse_traffic)
    )
    # Version, model or server that gets copies of the requests.
    shadow: Shadow | None = config_field(  # noqa: RUF009 (a dataclass field)
        Parameter(SHADOW, None, parse_shadow, _check_shadow)
    )


# Frozen forms with fields that a model's `parameters` may set.
FORMS: Final = (ModelParameters, DynamicBatching, SequenceBatching)
PARAMETERS: Final[Mapping[str, Parameter]] = MappingProxyType(
    {row.name: row for form in FORMS for row in parameters_of(form)}
)


def target_p99_us(config: model_config_pb2.ModelConfig) -> int:
    """Return the p99 target, or 0 for none; raise InvalidArgument for a wrong value."""
    return int(PARAMETERS[TARGET_P99_US].read_from(config))


def configured_traffic(config: model_config_pb2.ModelConfig) -> Traffic | None:
    """Return the traffic that a configuration asks for; raise InvalidArgument for a wrong value."""
    traffic: Traffic | None = PARAMETERS[TRAFFIC].read_from(config)
    return traffic


def configured_shadow(config: model_config_pb2.ModelConfig) -> Shadow | None:
    """Return the shadow that a configuration asks for; raise InvalidArgument for a wrong value."""
    shadow: Shadow | None = PARAMETERS[SHADOW].read_from(config)
    return shadow


def runs_at_most_once(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether requests must not run again; raise InvalidArgument for a wrong value."""
    return bool(PARAMETERS[AT_MOST_ONCE].read_from(config))
