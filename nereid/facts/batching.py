"""How a model's requests are batched, and what in its configuration keeps them from it.

Pure: a completed configuration, and what its model file says, in; findings out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.tensors.shapes import VARIABLE, format_shape
from nereid.facts.findings import Finding, Severity
from nereid.model_config.padding import read_padding
from nereid.model_config.validation.execution import (
    ADMISSION_TARGET_MS,
    TARGET_P99_US,
    target_p99_us,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid.backends import ModelDescription, TensorDescription
    from nereid.pb.model_config_pb2 import ModelConfig, ModelQueuePolicy

_DYNAMIC: Final = "dynamic_batching { }"
# What a hint proposes where it has to propose some size.
_SOME_BATCH: Final = 8


def advise_batching(config: ModelConfig, description: ModelDescription | None) -> list[Finding]:
    """What keeps requests from sharing executions. description: None where its file has none."""
    return [*_batching(config, description), *_target(config)]


def batching_of(config: ModelConfig) -> str:
    """How requests of the model are batched: ensemble, sequence, dynamic or none."""
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
    """What it takes to batch this model."""
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
    if not batching.max_queue_delay_microseconds and not target_p99_us(config):
        yield Finding(
            Severity.NOTE,
            "no-queue-delay",
            "max_queue_delay_microseconds is 0: requests share a batch only if they wait while all"
            " instances execute",
            "a delay, say 500, has a lone request wait for others",
        )
    padding = read_padding(config)
    padded = (
        {(each.name, each.dim) for size in padding.sizes for each in size.inputs}
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
    yield from _policies(batching.default_queue_policy, batching.priority_queue_policy.values())


def _target(config: ModelConfig) -> Iterator[Finding]:
    """What a target for the p99 leaves without effect, or what leaves it without."""
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
    batching = config.dynamic_batching
    decided = []
    if set(batching.preferred_batch_size) - {config.max_batch_size}:
        decided.append("preferred_batch_size")
    if batching.max_queue_delay_microseconds:
        decided.append("max_queue_delay_microseconds")
    if ADMISSION_TARGET_MS in config.parameters:
        decided.append(ADMISSION_TARGET_MS)
    if decided:
        yield Finding(
            Severity.WARNING,
            "target-decides",
            f"{' and '.join(decided)} without effect: {name} decides instead",
            "leave the target or the others out",
        )


def _policies(default: ModelQueuePolicy, others: Iterable[ModelQueuePolicy]) -> Iterator[Finding]:
    if any(
        each.allow_timeout_override and not each.default_timeout_microseconds
        for each in (default, *others)
    ):
        yield Finding(
            Severity.WARNING,
            "timeout-override",
            "allow_timeout_override has no effect while default_timeout_microseconds is 0",
            "set default_timeout_microseconds: clients' timeouts may be shorter than that",
        )
