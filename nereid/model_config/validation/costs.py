"""Limits on what the numbers in a configuration cost the services that read it.

Triton has no such limits. All are far above what a model needs, and products are limited too.
Numbers that cost nothing until requests arrive have no limit.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER, SIZE_BYTES
from nereid.model_config.batching_fields import DynamicBatching
from nereid.model_config.config_field import message_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.model_config.padding import Padding
    from nereid.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup

# Instances per executor. Each has a stream, and most have a session of their runtime.
MAX_INSTANCES: Final = 256
# Instances of all versions, per executor.
MAX_VERSION_INSTANCES: Final = 1024
# Sessions per executor. An instance may have one session for each set of outputs.
MAX_SESSIONS: Final = 512
# Captured CUDA graphs per executor.
MAX_GRAPHS: Final = 4096
# Steps of an ensemble, and step requests of one request if steps are ensembles themselves.
MAX_STEPS: Final = 1024
MAX_STEP_REQUESTS: Final = 4096
MAX_WARMUP_BATCH: Final = 8192
MAX_WARMUP_COUNT: Final = 10_000
# Executions of all samples, for a model's instances on one executor. Each takes at least 20 us.
MAX_WARMUP_EXECUTIONS: Final = 1 << 16
# Tensors of all samples, for a model's instances on one executor. Each instance makes its own.
MAX_WARMUP_TENSORS: Final = 1 << 17
# Bytes of a warm-up batch, which is executed at once.
MAX_WARMUP_BYTES: Final = 1 << 27
# Bytes while all instances of a model on one executor are warmed up at the same time.
MAX_WARMUP_HELD_BYTES: Final = 1 << 30
# Bytes of all executions on one executor. A request counts as at least _REQUEST_BYTES.
MAX_WARMUP_TOTAL_BYTES: Final = 1 << 35
_REQUEST_BYTES: Final = 4096
# Bytes of a sequence's initial states, and of one padded tensor of a request.
MAX_TENSOR_BYTES: Final = 1 << 30
# Bytes of the initial states that all instances on one executor hold.
MAX_STATES_BYTES: Final = 1 << 33
# numpy allows 64 dimensions, and one of them is the batch dimension.
MAX_RANK: Final = 63
# Length of a list that is scanned for each batch or written to each metrics page.
MAX_LIST: Final = 256
# Bytes that a BYTES element takes as a Python object.
_BYTES_ELEMENT: Final = 64


def validate_costs(config: ModelConfig, padding: Padding | None) -> None:
    """Check all numbers of a configuration that is otherwise valid; raise InvalidArgument."""
    instances = _check_instances(config)
    _check_products(config, instances)
    if padding is not None:
        _check_padding(config, padding)
    for message in (config.dynamic_batching, config.sequence_batching.oldest):
        for _, row in message_rows(DynamicBatching, message):
            if row.is_scanned:
                _check_list(config.name, row.name, getattr(message, row.name))
    _check_list(config.name, "metric_control", config.model_metrics.metric_control)
    for control in config.model_metrics.metric_control:
        _check_list(config.name, "buckets", control.histogram_options.buckets)
    for group in config.instance_group:
        _check_list(config.name, "rate_limiter resources", group.rate_limiter.resources)
    steps = len(config.ensemble_scheduling.step)
    _check(config.name, "ensemble_scheduling", steps, MAX_STEPS, "steps")


def check_version_costs(config: ModelConfig, versions: int) -> None:
    """Check what several versions of a model cost together; raise InvalidArgument."""
    if versions <= 1:
        # The limits for a single version have clearer messages.
        return
    instances = versions * _instances_of(config.instance_group)
    unit = f"instances of {versions} versions"
    _check(config.name, "instance_group", instances, MAX_VERSION_INSTANCES, unit)
    _check_products(config, instances)


def check_group_costs(model: str, groups: Iterable[ModelInstanceGroup]) -> None:
    """Check instance groups as an executor hosts them; raise InvalidArgument."""
    _check(model, "instance_group", _instances_of(groups), MAX_INSTANCES, "instances")


def check_session_costs(config: ModelConfig, sessions: int, field: str) -> None:
    """Check the number of sessions of each instance; raise InvalidArgument that names the field."""
    instances = _instances_of(config.instance_group)
    unit = f"sessions for {instances} instances"
    _check(config.name, field, sessions * instances, MAX_SESSIONS, unit)


def check_step_requests(model: str, requests: int) -> None:
    """Check the step requests of one request, nested ones included; raise InvalidArgument."""
    unit = "requests of steps for a request"
    _check(model, "ensemble_scheduling", requests, MAX_STEP_REQUESTS, unit)


def check_warmup_size(model: str, sample: str, size: int) -> None:
    """Check the number of bytes in a sample's batch; raise InvalidArgument."""
    _check(model, f"model_warmup '{sample}'", size, MAX_WARMUP_BYTES, "bytes in a batch")


def _check_instances(config: ModelConfig) -> int:
    instances = _instances_of(config.instance_group)
    _check(config.name, "instance_group", instances, MAX_INSTANCES, "instances")
    return instances


def _instances_of(groups: Iterable[ModelInstanceGroup]) -> int:
    return max(1, sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups))


def _check_products(config: ModelConfig, instances: int) -> None:
    _check_warmup(config, instances)
    _check_states(config, instances)
    graphs = len(config.optimization.cuda.graph_spec) * instances
    unit = f"graphs for {instances} instances"
    _check(config.name, "graph_spec", graphs, MAX_GRAPHS, unit)


def _check_warmup(config: ModelConfig, instances: int) -> None:
    model = config.name
    samples = [sample for sample in config.model_warmup if sample.batch_size]
    tensors = sum(len(sample.inputs) for sample in samples) * instances
    unit = f"tensors for {instances} instances"
    _check(model, "model_warmup", tensors, MAX_WARMUP_TENSORS, unit)
    largest = total = executions = 0
    for sample in samples:
        field = f"model_warmup '{sample.name}'"
        _check(model, f"{field} batch_size", sample.batch_size, MAX_WARMUP_BATCH)
        _check(model, f"{field} count", sample.count, MAX_WARMUP_COUNT)
        for name, tensor in sample.inputs.items():
            _check_rank(model, f"{field} input '{name}'", tensor.dims)
        size = sum(_size(tensor.data_type, tensor.dims) for tensor in sample.inputs.values())
        check_warmup_size(model, sample.name, size * sample.batch_size)
        count = max(1, sample.count)
        executions += count
        largest = max(largest, size * sample.batch_size)
        total += count * sample.batch_size * max(size, _REQUEST_BYTES)
    field = "model_warmup"
    _check(model, field, executions, MAX_WARMUP_COUNT, "executions of all samples")
    unit = f"executions for {instances} instances"
    _check(model, field, executions * instances, MAX_WARMUP_EXECUTIONS, unit)
    unit = f"bytes at a time for {instances} instances"
    _check(model, field, largest * instances, MAX_WARMUP_HELD_BYTES, unit)
    unit = f"bytes in all executions for {instances} instances"
    _check(model, field, total * instances, MAX_WARMUP_TOTAL_BYTES, unit)


def _check_states(config: ModelConfig, instances: int) -> None:
    model, batching = config.name, config.sequence_batching
    _check_list(model, "sequence_batching state", batching.state)
    controls = [control for tensor in batching.control_input for control in tensor.control]
    _check_list(model, "sequence_batching control", controls)
    size = 0
    for state in batching.state:
        size += _size(state.data_type, state.dims)
        _check_rank(model, f"state '{state.input_name}'", state.dims)
        for initial in state.initial_state:
            size += _size(initial.data_type, initial.dims)
            _check_rank(model, f"initial_state of state '{state.input_name}'", initial.dims)
    field = "sequence_batching state"
    _check(model, field, size, MAX_TENSOR_BYTES, "bytes for a sequence")
    unit = f"bytes for {instances} instances"
    _check(model, field, size * instances, MAX_STATES_BYTES, unit)


def _check_padding(config: ModelConfig, padding: Padding) -> None:
    largest = {
        (tensor.name, tensor.dim): size.buckets[-1]
        for size in padding.sizes
        for tensor in size.inputs
    }
    for tensor in config.input:
        dims = [largest.get((tensor.name, i), dim) for i, dim in enumerate(tensor.dims)]
        if dims != tensor.dims:
            field = f"parameter 'padding' with input '{tensor.name}'"
            size = _size(tensor.data_type, dims)
            _check(config.name, field, size, MAX_TENSOR_BYTES, "bytes for a request")


def _check_rank(model: str, field: str, dims: Sequence[int]) -> None:
    _check(model, field, len(dims), MAX_RANK, "dimensions")


def _check_list(model: str, field: str, values: Sequence[object]) -> None:
    _check(model, field, len(values), MAX_LIST, "values")


def _size(data_type: int, dims: Iterable[int]) -> int:
    name = NAME_OF_CONFIG_NUMBER.get(data_type, "")
    return SIZE_BYTES.get(name, _BYTES_ELEMENT) * prod(dim if dim >= 0 else 1 for dim in dims)


def _check(model: str, field: str, found: int, most: int, unit: str = "") -> None:
    if found > most:
        unit = f" {unit}" if unit else ""
        raise InvalidArgument(
            f"{field} of model '{model}' must be at most {most}{unit} but is {found}"
        )
