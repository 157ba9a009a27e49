"""Findings about how a model's requests are batched, and about what prevents batching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.tensors.shapes import VARIABLE, format_shape
from nereid.facts.findings import Finding, Severity
from nereid.model_config.batching_fields import (
    MAX_BATCH_TOKENS,
    PARAMETERS,
    TARGET_P99_US,
    DynamicBatching,
    QueuePolicy,
    target_p99_us,
)
from nereid.model_config.config_field import Scope, message_rows
from nereid.model_config.padding import read_padding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from nereid.backends import ModelDescription, TensorDescription
    from nereid.model_config.padding import Padding
    from nereid.pb.model_config_pb2 import ModelConfig

_DYNAMIC: Final = "dynamic_batching { }"
# Batch size that hints propose.
_SOME_BATCH: Final = 8
_SOME_TOKENS: Final = 16384


def advise_batching(config: ModelConfig, description: ModelDescription | None) -> list[Finding]:
    """Return findings about what keeps requests from sharing executions."""
    return [*_batching(config, description), *_target(config)]


def batching_of(config: ModelConfig) -> str:
    """Return how the model's requests are batched: ensemble, sequence, dynamic or none."""
    if config.HasField("ensemble_scheduling"):
        return "ensemble"
    if config.HasField("sequence_batching"):
        return "sequence"
    if config.HasField("dynamic_batching") and config.max_batch_size > 1:
        return "dynamic"
    return "none"


def _batching(config: ModelConfig, description: ModelDescription | None) -> Iterator[Finding]:
    match batching_of(config):
        case "ensemble":
            yield Finding(
                Severity.NOTE,
                "ensemble-batching",
                "requests of an ensemble are batched by the models of its steps, not by itself",
            )
        case "sequence":
            if config.max_batch_size <= 1:
                yield Finding(
                    Severity.NOTE,
                    "no-batching",
                    f"max_batch_size is {config.max_batch_size}: each execution has a request of"
                    " one sequence",
                    "with a larger max_batch_size sequences share executions",
                )
        case "dynamic":
            yield from _dynamic(config)
            if description is not None and description.mixes_rows:
                yield Finding(
                    Severity.NOTE,
                    "batching-changes-results",
                    "the graph quantizes dynamically: its scales depend on all rows of a batch, so"
                    " the same request has other results in another batch",
                    "quantize statically, or set max_batch_size to 1",
                )
        case _:
            yield _unbatched(config, description)


def _unbatched(config: ModelConfig, description: ModelDescription | None) -> Finding:
    size = config.max_batch_size
    if size > 1:
        return Finding(
            Severity.WARNING,
            "no-dynamic-batching",
            f"max_batch_size is {size}, but there is no dynamic_batching: each execution has the"
            " rows of one request",
            f"add {_DYNAMIC}",
        )
    if config.HasField("dynamic_batching"):
        return Finding(
            Severity.WARNING,
            "dynamic-batching-of-one",
            f"dynamic_batching has no effect: max_batch_size is {size}",
            _size_hint(description),
        )
    return Finding(
        Severity.NOTE,
        "no-batching",
        f"max_batch_size is {size}: each execution has one request",
        _size_hint(description),
    )


def _size_hint(description: ModelDescription | None) -> str:
    change = (
        f"set max_batch_size, say {_SOME_BATCH}, leave the first dimension out of all dims, and add"
        f" {_DYNAMIC}"
    )
    if description is None:
        return f"if the model executes several rows at once: {change}"
    fixed = next(_fixed_tensors(description), None)
    if fixed is None:
        return f"the model file has a variable first dimension everywhere: {change}"
    return (
        f"the model file gives '{fixed.name}' the shape {format_shape(fixed.dims or ())}: it cannot"
        " batch unless it is exported anew with a variable first dimension (-1)"
    )


def _fixed_tensors(description: ModelDescription) -> Iterator[TensorDescription]:
    for tensor in (*description.inputs, *description.outputs):
        if not tensor.optional and tensor.dims is not None and tensor.dims[:1] != (VARIABLE,):
            yield tensor


def _dynamic(config: ModelConfig) -> Iterator[Finding]:
    batching = config.dynamic_batching
    yield from _advice(config, DynamicBatching, batching)
    padding = read_padding(config)
    padded = (
        {(tensor.name, tensor.dim) for size in padding.sizes for tensor in size.inputs}
        if padding is not None
        else set()
    )
    variable = [
        f"'{tensor.name}' {format_shape(tensor.dims)}"
        for tensor in config.input
        if not tensor.allow_ragged_batch
        and any(
            dim == VARIABLE and (tensor.name, index) not in padded
            for index, dim in enumerate(tensor.dims)
        )
    ]
    if variable:
        yield Finding(
            Severity.NOTE,
            "variable-shapes",
            f"requests share a batch only if their shapes are equal: {', '.join(variable)}",
            "the parameter padding, or allow_ragged_batch, has requests of different shapes share"
            " batches",
        )
    yield from _tokens(config, padding)
    policies = batching.priority_queue_policy.values()
    yield from _advice(config, QueuePolicy, batching.default_queue_policy, *policies)


def _tokens(config: ModelConfig, padding: Padding | None) -> Iterator[Finding]:
    if MAX_BATCH_TOKENS in config.parameters:
        if set(config.dynamic_batching.preferred_batch_size) - {config.max_batch_size}:
            yield Finding(
                Severity.WARNING,
                "tokens-decide",
                f"preferred_batch_size has no effect: the parameter {MAX_BATCH_TOKENS} decides"
                " instead",
                "leave one of them out",
            )
    elif padding is not None and len(padding.sizes) == 1:
        yield Finding(
            Severity.NOTE,
            "batches-by-size",
            "requests share a batch only if they are padded to the same size",
            f'the parameter {MAX_BATCH_TOKENS}, say "{_SOME_TOKENS}", has requests of similar'
            " lengths share batches",
        )


def _target(config: ModelConfig) -> Iterator[Finding]:
    if not target_p99_us(config):
        return
    name = f"the parameter {TARGET_P99_US}"
    kinds = {"ensemble": "an ensemble, which its steps' models batch", "sequence": "sequences"}
    kind = kinds.get(batching_of(config))
    if kind is None and config.model_transaction_policy.decoupled:
        kind = "a decoupled model"
    if kind is not None:
        yield Finding(
            Severity.WARNING,
            "target-without-effect",
            f"{name} has no effect on {kind}",
            "it is for models that give one response to each request",
        )
        return
    scope = Scope(config, config.dynamic_batching)
    decided = [
        row.name
        for _, row in message_rows(DynamicBatching, scope.message)
        if row.decided_by_target is not None and row.decided_by_target(scope)
    ]
    decided += [
        name
        for name, parameter in PARAMETERS.items()
        if parameter.decided_by_target and name in config.parameters
    ]
    if decided:
        yield Finding(
            Severity.WARNING,
            "target-decides",
            f"{' and '.join(decided)} without effect: {name} decides instead",
            "leave the target or the others out",
        )


def _advice(config: ModelConfig, form: type[Any], *messages: Message) -> Iterator[Finding]:
    for _, row in message_rows(form, messages[0]):
        advice = row.advice
        if advice is None or not any(map(advice.applies, messages)):
            continue
        if row.decided_by_target is not None and target_p99_us(config):
            continue
        severity = Severity.WARNING if advice.is_warning else Severity.NOTE
        yield Finding(severity, advice.code, advice.message, advice.hint)
