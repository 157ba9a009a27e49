"""What the numbers of a configuration may ask for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations, islice, pairwise
from pathlib import Path
from time import process_time
from typing import NamedTuple

import pytest

from nereid.core.errors import InvalidArgument, NereidError
from nereid.model_config import (
    complete_config,
    freeze_config,
    normalise_instance_groups,
    parse_config,
    validate_config,
)
from nereid.model_config.validation import costs
from nereid.pb import model_config_pb2
from nereid_executor.batch.sequence_states import state_specs
from nereid_executor.batch.warmup import read_samples
from nereid_scheduler.batching.batcher import make_batcher
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.versions.validation.warmup_validation import check_samples
from tests.support.models.config_fields import (
    LARGEST,
    field_of,
    lengthen,
    list_paths,
    number_paths,
    set_number,
)

_TENSORS = (
    "input { name: 'x' data_type: TYPE_FP32 dims: [-1] }"
    " output { name: 'y' data_type: TYPE_FP32 dims: [-1] }"
)
_STATE = "state { input_name: 'a' output_name: 'b' data_type: TYPE_FP32 dims: [%s] }"
_WARMUP = (
    "model_warmup { name: 's' %s inputs { key: 'x' value"
    " { data_type: TYPE_FP32 dims: [%s] random_data: true } } }"
)
_MANY_TENSORS = "model_warmup {{ name: 's' batch_size: 1 {} }}".format(
    " ".join(
        f"inputs {{ key: 'x{n}' value {{ data_type: TYPE_FP32 dims: 1 zero_data: true }} }}"
        for n in range(1024)
    )
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
            f"{_WARMUP % ('batch_size: 1 count: 1000', 1)} instance_group {{ count: 66 }}",
            (
                "model_warmup of model 'm' must be at most 65536 executions for 66 instances but is"
                " 66000"
            ),
        ),
        (
            f"{_MANY_TENSORS} instance_group {{ count: 129 }}",
            (
                "model_warmup of model 'm' must be at most 131072 tensors for 129 instances but is"
                " 132096"
            ),
        ),
        (
            (
                f"sequence_batching {{ {_STATE % (costs.MAX_TENSOR_BYTES // 4)} }}"
                " instance_group { count: 9 }"
            ),
            (
                "sequence_batching state of model 'm' must be at most 8589934592 bytes for 9"
                " instances but is 9663676416"
            ),
        ),
        (
            f"sequence_batching {{ {_STATE % ', '.join(['1'] * 64)} }}",
            "state 'a' of model 'm' must be at most 63 dimensions but is 64",
        ),
        (
            _WARMUP % ("batch_size: 1", ", ".join(["1"] * 64)),
            "model_warmup 's' input 'x' of model 'm' must be at most 63 dimensions but is 64",
        ),
        (
            (
                f"optimization {{ cuda {{ {'graph_spec { } ' * 17} }} }}"
                " instance_group { count: 256 }"
            ),
            "graph_spec of model 'm' must be at most 4096 graphs for 256 instances but is 4352",
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


def test_versions_multiply_what_one_costs() -> None:
    config = config_of(f"instance_group {{ count: 4 }} {_WARMUP % ('batch_size: 1 count: 100', 1)}")
    costs.check_version_costs(config, 100)
    with pytest.raises(InvalidArgument) as refused:
        costs.check_version_costs(config, 257)
    assert refused.value.message == (
        "instance_group of model 'm' must be at most 1024 instances of 257 versions but is 1028"
    )
    with pytest.raises(InvalidArgument, match="at most 65536 executions for 1000 instances"):
        costs.check_version_costs(config, 250)


def test_all_gpus_of_an_executor_multiply_instances() -> None:
    config = config_of("instance_group { count: 100 kind: KIND_GPU }")
    assert len(normalise_instance_groups(config, gpu_ids=[0, 1])) == 1
    with pytest.raises(InvalidArgument, match="must be at most 256 instances but is 300"):
        normalise_instance_groups(config, gpu_ids=[0, 1, 2])


def test_sessions_multiply_instances() -> None:
    config = config_of("instance_group { count: 128 }")
    costs.check_session_costs(config, 4, "parameter 'p'")
    with pytest.raises(InvalidArgument) as refused:
        costs.check_session_costs(config, 5, "parameter 'p'")
    assert refused.value.message == (
        "parameter 'p' of model 'm' must be at most 512 sessions for 128 instances but is 640"
    )


def test_an_ensemble_has_a_bound_of_steps() -> None:
    names = ["x", *(f"t{number}" for number in range(costs.MAX_STEPS)), "y"]
    steps = " ".join(
        f"step {{ model_name: 's' model_version: -1 input_map {{ key: 'i' value: '{taken}' }}"
        f" output_map {{ key: 'o' value: '{given}' }} }}"
        for taken, given in pairwise(names)
    )
    text = f"platform: 'ensemble' {_TENSORS} ensemble_scheduling {{ {steps} }}"
    config = complete_config(parse_config(text, model_name="m"), model_name="m", description=None)
    with pytest.raises(InvalidArgument) as refused:
        validate_config(config)
    assert refused.value.message == (
        "ensemble_scheduling of model 'm' must be at most 1024 steps but is 1025"
    )


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
_MAX_MIB = 384
_MAX_CPU_S = 3.0
_MAX_PAIR_CPU_S = 1.5
# What is longer costs its own length.
_MAX_CONFIG_BYTES = 1 << 20


class Change(NamedTuple):
    """A number to set, or a list to make longer."""

    path: tuple[str, ...]
    value: int
    is_number: bool


class Cost(NamedTuple):
    """What a load has taken."""

    is_valid: bool
    cpu_s: float


def load(config: model_config_pb2.ModelConfig, directory: Path) -> None:
    """What scheduler and executor do with a configuration before the first request."""
    completed = complete_config(config, model_name="m", description=None)
    frozen = freeze_config(completed)
    check_samples(frozen)
    router: Router[object] = Router()
    batcher = make_batcher(frozen, router)
    for group in normalise_instance_groups(completed, gpu_ids=[0]):
        for instance in range(group.count * max(1, len(group.gpus))):
            router.add_instance((group.name, instance))
            if hasattr(batcher, "add_instance"):
                batcher.add_instance((group.name, instance))
            state_specs(completed, directory)
            for _ in read_samples(completed, directory):
                pass


def cost(base: str, directory: Path, *changes: Change) -> Cost:
    """What a configuration costs that has these changes."""
    config = parse_config(
        f"backend: 'identity' max_batch_size: 8 {_TENSORS} {base}", model_name="m"
    )
    # Lists first, so that each element has the numbers.
    for change in sorted(changes, key=lambda each: each.is_number):
        (set_number if change.is_number else lengthen)(config, change.path, change.value)
    if config.ByteSize() > _MAX_CONFIG_BYTES:
        return Cost(is_valid=False, cpu_s=0.0)
    is_valid = False
    began_s = process_time()
    with suppress(NereidError):
        load(config, directory)
        is_valid = True
    return Cost(is_valid, process_time() - began_s)


@pytest.mark.parametrize("base", _BASES, ids=("batching", "direct", "oldest", "metrics"))
@pytest.mark.parametrize("large", [10**6, 10**9, 2**64], ids=str)
def test_no_number_costs_much_before_it_is_refused_or_loaded(
    base: str, large: int, tmp_path: Path
) -> None:
    for path in number_paths():
        number = min(large, LARGEST[field_of(path).type])
        tracemalloc.start()
        found = cost(base, tmp_path, Change(path, number, is_number=True))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < _MAX_MIB << 20, path
        assert found.cpu_s < _MAX_CPU_S, path


def largest_valid(base: str, directory: Path) -> Iterator[Change]:
    """For each number, and the length of each list, about the most that is valid by itself."""
    for path in number_paths():
        bits = LARGEST[field_of(path).type].bit_length()
        tried = (Change(path, (1 << each) - 1, is_number=True) for each in range(bits, 0, -1))
        yield from islice((each for each in tried if cost(base, directory, each).is_valid), 1)
    for path in list_paths():
        tried = (Change(path, count, is_number=False) for count in (1024, 256, 63, 8))
        yield from islice((each for each in tried if cost(base, directory, each).is_valid), 1)


# The samples of a warm-up are read, a quarter of a second for the largest. Of the other fields only
# these change how often.
_SAMPLE_SIZE = ("model_warmup", "inputs", "dims")
_READS_SAMPLES = {"model_warmup", "instance_group", "input", "max_batch_size"}


def may_multiply(*pair: Change) -> bool:
    sizes = [each.path == _SAMPLE_SIZE for each in pair]
    return not any(sizes) or all(each.path[0] in _READS_SAMPLES for each in pair)


@pytest.mark.slow
def test_no_two_fields_that_are_valid_cost_much_together(tmp_path: Path) -> None:
    for pair in combinations(list(largest_valid(_BASES[0], tmp_path)), 2):
        if may_multiply(*pair):
            assert cost(_BASES[0], tmp_path, *pair).cpu_s < _MAX_PAIR_CPU_S, pair


@pytest.mark.nightly
@pytest.mark.parametrize("base", _BASES, ids=("batching", "direct", "oldest", "metrics"))
def test_no_two_fields_cost_much_together(base: str, tmp_path: Path) -> None:
    for pair in combinations(list(largest_valid(base, tmp_path)), 2):
        assert cost(base, tmp_path, *pair).cpu_s < _MAX_PAIR_CPU_S, pair
