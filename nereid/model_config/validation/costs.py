"""Bounds on what the numbers of a configuration cost the services that read it.

A load request may bring a configuration of a few hundred bytes, whose numbers ask for memory or
time of processes that serve other models as well. Triton has no such bounds; they are far above
what a model needs. What costs nothing until requests come (max_batch_size, candidate sequences,
priority levels, timeouts) has none.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from nereid.core.datatypes import NAME_OF_CONFIG_NUMBER, SIZE_BYTES
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.model_config.padding import Padding
    from nereid.pb.model_config_pb2 import ModelConfig

# Instances of all groups on one executor: each has a stream, and most a session of their runtime.
MAX_INSTANCES: Final = 256
# Requests of a warm-up sample, which form one batch, and how often that is executed.
MAX_WARMUP_BATCH: Final = 8192
MAX_WARMUP_COUNT: Final = 10_000
# Size of all tensors of a warm-up batch, which is executed as one.
MAX_WARMUP_BYTES: Final = 1 << 27
# What the samples of a model's instances, which are warmed up at a time, may take on one executor.
MAX_WARMUP_HELD_BYTES: Final = 1 << 30
# What all executions of all samples of these instances may be given, each request counting as so
# many bytes at least.
MAX_WARMUP_TOTAL_BYTES: Final = 1 << 35
_REQUEST_BYTES: Final = 4096
# Size of a sequence's initial states, and of a request's tensor with its padding.
MAX_TENSOR_BYTES: Final = 1 << 30
# Length of lists that are scanned for each batch, or written to each metrics page.
MAX_LIST: Final = 256
# What an element of type BYTES takes as an object.
_BYTES_ELEMENT: Final = 64


def validate_costs(config: ModelConfig, padding: Padding | None) -> None:
    """Check all numbers of a configuration that is valid otherwise.

    Raises:
        InvalidArgument: one asks for too much; the text has the field and the bound.
    """
    instances = _check_instances(config)
    _check_warmup(config, instances)
    _check_states(config)
    if padding is not None:
        _check_padding(config, padding)
    batching = config.dynamic_batching
    _check_list(config.name, "preferred_batch_size", batching.preferred_batch_size)
    _check_list(
        config.name, "preferred_batch_size", config.sequence_batching.oldest.preferred_batch_size
    )
    for control in config.model_metrics.metric_control:
        _check_list(config.name, "buckets", control.histogram_options.buckets)


def check_warmup_size(model: str, sample: str, size: int) -> None:
    """Check the bytes of a sample's batch.

    Raises:
        InvalidArgument: they are too many.
    """
    _check(model, f"model_warmup '{sample}'", size, MAX_WARMUP_BYTES, "bytes in a batch")


def _check_instances(config: ModelConfig) -> int:
    """Return how many instances there are on one executor, if it is known; else 1."""
    instances = sum(
        max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group
    )
    _check(config.name, "instance_group", instances, MAX_INSTANCES, "instances")
    return max(1, instances)


def _check_warmup(config: ModelConfig, instances: int) -> None:
    """Check each sample, and what all of them come to: the bounds of one by one may multiply."""
    model = config.name
    samples = [sample for sample in config.model_warmup if sample.batch_size]
    largest = total = executions = 0
    for sample in samples:
        field = f"model_warmup '{sample.name}'"
        _check(model, f"{field} batch_size", sample.batch_size, MAX_WARMUP_BATCH)
        _check(model, f"{field} count", sample.count, MAX_WARMUP_COUNT)
        size = sum(_size(each.data_type, each.dims) for each in sample.inputs.values())
        check_warmup_size(model, sample.name, size * sample.batch_size)
        count = max(1, sample.count)
        executions += count
        largest = max(largest, size * sample.batch_size)
        total += count * sample.batch_size * max(size, _REQUEST_BYTES)
    field = "model_warmup"
    _check(model, field, executions, MAX_WARMUP_COUNT, "executions of all samples")
    unit = f"bytes at a time for {instances} instances"
    _check(model, field, largest * instances, MAX_WARMUP_HELD_BYTES, unit)
    unit = f"bytes in all executions for {instances} instances"
    _check(model, field, total * instances, MAX_WARMUP_TOTAL_BYTES, unit)


def _check_states(config: ModelConfig) -> None:
    size = 0
    for state in config.sequence_batching.state:
        size += _size(state.data_type, state.dims)
        size += sum(_size(each.data_type, each.dims) for each in state.initial_state)
    _check(config.name, "sequence_batching state", size, MAX_TENSOR_BYTES, "bytes for a sequence")


def _check_padding(config: ModelConfig, padding: Padding) -> None:
    largest = {
        (tensor.name, tensor.dim): each.buckets[-1]
        for each in padding.sizes
        for tensor in each.inputs
    }
    for tensor in config.input:
        dims = [largest.get((tensor.name, i), dim) for i, dim in enumerate(tensor.dims)]
        if dims != tensor.dims:
            field = f"parameter 'padding' with input '{tensor.name}'"
            size = _size(tensor.data_type, dims)
            _check(config.name, field, size, MAX_TENSOR_BYTES, "bytes for a request")


def _check_list(model: str, field: str, values: Sequence[object]) -> None:
    _check(model, field, len(values), MAX_LIST, "values")


def _size(data_type: int, dims: Iterable[int]) -> int:
    """In memory; a variable dimension counts as 1."""
    name = NAME_OF_CONFIG_NUMBER.get(data_type, "")
    return SIZE_BYTES.get(name, _BYTES_ELEMENT) * prod(dim if dim >= 0 else 1 for dim in dims)


def _check(model: str, field: str, found: int, most: int, unit: str = "") -> None:
    if found > most:
        unit = f" {unit}" if unit else ""
        raise InvalidArgument(
            f"{field} of model '{model}' must be at most {most}{unit} but is {found}"
        )
