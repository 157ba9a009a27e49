"""What the numbers of a configuration may ask for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from nereid.core.errors import InvalidArgument, NereidError
from nereid.model_config import complete_config, freeze_config, parse_config, validate_config
from nereid.model_config.validation import costs
from nereid.pb import model_config_pb2
from nereid.services.executor.batch.sequence_states import state_specs
from nereid.services.executor.warmup import read_samples
from nereid.services.scheduler.batching.batcher import make_batcher
from nereid.services.scheduler.executors.router import Router
from nereid.services.scheduler.models.warmup_validation import check_samples

_TENSORS = (
    "input { name: 'x' data_type: TYPE_FP32 dims: [-1] }"
    " output { name: 'y' data_type: TYPE_FP32 dims: [-1] }"
)
_STATE = "state { input_name: 'a' output_name: 'b' data_type: TYPE_FP32 dims: [%s] }"
_WARMUP = (
    "model_warmup { name: 's' %s inputs { key: 'x' value"
    " { data_type: TYPE_FP32 dims: [%s] random_data: true } } }"
)
_PADDING = "parameters { key: 'padding' value { string_value: 'x[0] -> y[0]: 8 %s' } }"


def config_of(more: str, max_batch_size: int = 8) -> model_config_pb2.ModelConfig:
    text = f"backend: 'identity' max_batch_size: {max_batch_size} {_TENSORS} {more}"
    return complete_config(parse_config(text, model_name="m"), model_name="m", description=None)


@pytest.mark.parametrize(
    "more",
    [
        f"instance_group {{ count: {costs.MAX_INSTANCES} }}",
        _WARMUP % (f"batch_size: {costs.MAX_WARMUP_BATCH} count: 1000", 1),
        _WARMUP % (f"batch_size: 32 count: {costs.MAX_WARMUP_COUNT}", 1),
        # 128 images on each of 8 instances, 10 times.
        f"{_WARMUP % ('batch_size: 128 count: 10', 3 * 224 * 224)} instance_group {{ count: 8 }}",
        _WARMUP % ("batch_size: 1", costs.MAX_WARMUP_BYTES // 4),
        _WARMUP % ("batch_size: 0", 1 << 62),  # skipped, as on Triton
        f"sequence_batching {{ {_STATE % (costs.MAX_TENSOR_BYTES // 4)} }}",
        _PADDING % (costs.MAX_TENSOR_BYTES // 4),
        "sequence_batching { oldest { max_candidate_sequences: 2147483647 } }",
        "dynamic_batching { priority_levels: 1152921504606846976 default_priority_level: 1 }",
    ],
)
def test_what_a_model_may_ask_for(more: str) -> None:
    validate_config(config_of(more))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            "instance_group { count: 200 } instance_group { count: 57 }",
            "instance_group of model 'm' must be at most 256 instances but is 257",
        ),
        (
            "instance_group { count: 129 kind: KIND_GPU gpus: [0, 1] }",
            "instance_group of model 'm' must be at most 256 instances but is 258",
        ),
        (
            _WARMUP % ("batch_size: 8193", 1),
            "model_warmup 's' batch_size of model 'm' must be at most 8192 but is 8193",
        ),
        (
            _WARMUP % ("batch_size: 1 count: 10001", 1),
            "model_warmup 's' count of model 'm' must be at most 10000 but is 10001",
        ),
        (
            _WARMUP % ("batch_size: 4", (costs.MAX_WARMUP_BYTES // 16) + 1),
            (
                "model_warmup 's' of model 'm' must be at most 134217728 bytes in a batch but is"
                " 134217744"
            ),
        ),
        (
            _WARMUP % ("batch_size: 1 count: 10000", 30_000_000),
            (
                "model_warmup of model 'm' must be at most 34359738368 bytes in all executions for"
                " 1 instances but is 1200000000000"
            ),
        ),
        (
            _WARMUP % ("batch_size: 8192 count: 10000", 1),
            (
                "model_warmup of model 'm' must be at most 34359738368 bytes in all executions for"
                " 1 instances but is 335544320000"
            ),
        ),
        (
            f"{_WARMUP % ('batch_size: 1', 30_000_000)} instance_group {{ count: 9 }}",
            (
                "model_warmup of model 'm' must be at most 1073741824 bytes at a time for 9"
                " instances but is 1080000000"
            ),
        ),
        (
            _WARMUP % ("batch_size: 1 count: 5001", 1) + _WARMUP % ("batch_size: 1 count: 5000", 1),
            (
                "model_warmup of model 'm' must be at most 10000 executions of all samples but is"
                " 10001"
            ),
        ),
        (
            f"sequence_batching {{ {_STATE % ((costs.MAX_TENSOR_BYTES // 4) + 1)} }}",
            (
                "sequence_batching state of model 'm' must be at most 1073741824 bytes"
                " for a sequence but is 1073741828"
            ),
        ),
        (
            _PADDING % ((costs.MAX_TENSOR_BYTES // 4) + 1),
            (
                "parameter 'padding' with input 'x' of model 'm' must be at most 1073741824 bytes"
                " for a request but is 1073741828"
            ),
        ),
        (
            f"dynamic_batching {{ preferred_batch_size: [{', '.join(['1'] * 257)}] }}",
            "preferred_batch_size of model 'm' must be at most 256 values but is 257",
        ),
        (
            (
                "model_metrics { metric_control { metric_identifier { family: 'f' }"
                f" histogram_options {{ buckets: [{', '.join(['1'] * 257)}] }} }} }}"
            ),
            "buckets of model 'm' must be at most 256 values but is 257",
        ),
    ],
)
def test_what_asks_for_too_much_is_refused(more: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        validate_config(config_of(more))
    assert refused.value.message == text


# ---- any number

_BASES = (
    (
        "dynamic_batching { preferred_batch_size: [2] priority_levels: 2"
        " default_priority_level: 1 }"
        f" instance_group {{ count: 1 }} {_WARMUP % ('batch_size: 1 count: 1', 1)} {_PADDING % 16}"
    ),
    f"sequence_batching {{ direct {{ }} {_STATE % 1} }}",
    "sequence_batching { oldest { max_candidate_sequences: 2 preferred_batch_size: [2] } }",
    (
        "model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options"
        " { buckets: [1] } } } optimization { cuda { graph_spec { batch_size: 1 } } }"
    ),
)
_MOST_MIB = 384
_MOST_CPU_S = 3.0


def numbers(descriptor: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all whole numbers of a message."""
    for field in descriptor.fields:
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                value = field.message_type.fields_by_name["value"].message_type
                if value is not None:
                    yield from numbers(value, (*path, field.name))
            else:
                yield from numbers(field.message_type, (*path, field.name))
        elif field.type in _LARGEST:
            yield (*path, field.name)


_LARGEST = {
    FieldDescriptor.TYPE_INT32: (2**31 - 1, 10**6),
    FieldDescriptor.TYPE_INT64: (2**63 - 1, 10**9),
    FieldDescriptor.TYPE_UINT32: (2**32 - 1, 10**6),
    FieldDescriptor.TYPE_UINT64: (2**64 - 1, 10**9),
}
_PATHS = sorted(numbers(model_config_pb2.ModelConfig.DESCRIPTOR))


def set_number(message: Message, path: tuple[str, ...], choice: int) -> None:
    """Set the number in each message on the way that is there, or in a new one."""
    name, *rest = path
    field: Any = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if not rest:
        largest = _LARGEST[field.type][choice]
        if field.is_repeated:
            value.append(largest)
        else:
            setattr(message, name, largest)
    elif field.message_type.GetOptions().map_entry:
        key_type = field.message_type.fields_by_name["key"].type
        key = "x" if key_type == FieldDescriptor.TYPE_STRING else 1
        set_number(value[key], tuple(rest), choice)
    elif field.is_repeated:
        for each in value or [value.add()]:
            set_number(each, tuple(rest), choice)
    else:
        value.SetInParent()
        set_number(value, tuple(rest), choice)


def load(config: model_config_pb2.ModelConfig, directory: Path) -> None:
    """What scheduler and executor do with a configuration before the first request."""
    completed = complete_config(config, model_name="m", description=None)
    frozen = freeze_config(completed)
    check_samples(frozen)
    router: Router[object] = Router()
    batcher = make_batcher(frozen, router)
    for instance in range(2):
        router.add_instance(instance)
        if hasattr(batcher, "add_instance"):
            batcher.add_instance(instance)
    state_specs(completed, directory)
    for _ in read_samples(completed, directory):
        pass


@pytest.mark.parametrize("base", _BASES, ids=("batching", "direct", "oldest", "metrics"))
@pytest.mark.parametrize("choice", [0, 1], ids=("largest", "large"))
def test_no_number_costs_much_before_it_is_refused_or_loaded(
    base: str, choice: int, tmp_path: Path
) -> None:
    for path in _PATHS:
        config = parse_config(
            f"backend: 'identity' max_batch_size: 8 {_TENSORS} {base}", model_name="m"
        )
        set_number(config, path, choice)
        tracemalloc.start()
        began_s = process_time()
        with suppress(NereidError):
            load(config, tmp_path)
        cpu_s = process_time() - began_s
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < _MOST_MIB << 20, path
        assert cpu_s < _MOST_CPU_S, path
