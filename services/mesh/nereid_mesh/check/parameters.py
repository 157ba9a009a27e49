"""Names of the parameters that Nereid and its backends read, used to find misspelled names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from nereid.core.known_backends import PYTHON
from nereid.model_config.batching_fields import PARAMETERS
from nereid.model_config.conditions import CONDITION
from nereid.model_config.defaults import DEFAULT
from nereid.model_config.padding import PADDING
from nereid_executor.backends.python.supervisor.environments import ENVIRONMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nereid.pb import model_config_pb2

# Padding is checked with the tensors. The scheduler accepts any value of lazy_loading.
_OF_ALL: Final = (*PARAMETERS, PADDING, "lazy_loading")
KNOWN_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "onnxruntime": (
        "device_input_cache_bytes",
        "device_input_cache_min_bytes",
        "device_io",
        "enable_mem_arena",
        "enable_mem_pattern",
        "execution_mode",
        "inter_op_thread_count",
        "intra_op_thread_count",
        "memory.enable_memory_arena_shrinkage",
        "output_sets",
    ),
    "openvino": (
        "COMPILATION_NUM_THREADS",
        "CPU_EXTENSION_PATH",
        "HINT_BF16",
        "INFERENCE_NUM_THREADS",
        "NUM_STREAMS",
        "PERFORMANCE_HINT",
        "RESHAPE_IO_LAYERS",
        "SKIP_OV_DYNAMIC_BATCHSIZE",
        "TARGET_DEVICE",
    ),
    "python": (
        ENVIRONMENT_KEY,
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        "execute-timeout-seconds",
        "initialize-timeout-seconds",
        "stub-timeout-seconds",
    ),
    "pytorch": (
        "CACHE_CLEANING_ENABLED",
        "DISABLE_CUDNN",
        "DISABLE_OPTIMIZED_EXECUTION",
        "ENABLE_CACHE_CLEANING",
        "ENABLE_JIT_EXECUTOR",
        "ENABLE_JIT_PROFILING",
        "ENABLE_TENSOR_FUSER",
        "ENABLE_WEIGHT_SHARING",
        "INFERENCE_MODE",
        "INTER_OP_THREAD_COUNT",
        "INTRA_OP_THREAD_COUNT",
    ),
    "tensorrt": ("enable_multi_device", "execution_context_allocation_strategy"),
}
_ONE_GPU: Final = "an engine runs on one GPU"
_PYTHON_SOURCE: Final = "it is for Python source, which the backend 'python' serves"
# Parameters that Triton's backends read and these do not, and why.
UNREAD_PARAMETERS: Final[Mapping[str, Mapping[str, str]]] = {
    "openvino": {"ENABLE_BATCH_PADDING": "batches of any size run without padding"},
    "pytorch": {
        "NUM_INTEROP_THREADS": _PYTHON_SOURCE,
        "NUM_THREADS": _PYTHON_SOURCE,
        "TORCH_COMPILE_OPTIONAL_PARAMETERS": _PYTHON_SOURCE,
    },
    "tensorrt": {
        "multi_device_gpus": _ONE_GPU,
        "multi_device_per_rank_engines": _ONE_GPU,
    },
}
# This is high, because a model's own parameters may resemble known ones. "traffik" is just above.
_SIMILARITY: Final = 0.85
_PREFIXES: Final = {prefix.rstrip("."): prefix for prefix in (CONDITION, DEFAULT)}


def misspelled(config: model_config_pb2.ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield each parameter whose name nearly equals a known name, together with the known name."""
    backend = config.backend
    unread = UNREAD_PARAMETERS.get(backend, {})
    known = (*_OF_ALL, *KNOWN_PARAMETERS.get(backend, ()), *unread)
    by_plain = {_plain(name): name for name in known}
    for name in sorted(config.parameters):
        if name in known:
            continue
        near = get_close_matches(_plain(name), by_plain, n=1, cutoff=_SIMILARITY)
        if near and by_plain[near[0]] not in config.parameters:
            yield name, by_plain[near[0]]
            continue
        kind, dot, rest = name.partition(".")
        near = get_close_matches(_plain(kind), _PREFIXES, n=1, cutoff=_SIMILARITY)
        if dot and near and kind != near[0]:
            yield name, _PREFIXES[near[0]] + rest


def unused_parameters(config: model_config_pb2.ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield each parameter that only Triton's backend reads, and the reason.

    So are parameters that look like a default or a condition and are none. Loads refuse those of
    ensembles. The code of a Python model may read such a parameter itself, if its name is not
    nearly that of an input.
    """
    unread = UNREAD_PARAMETERS.get(config.backend, {})
    yield from ((name, unread[name]) for name in sorted(unread) if name in config.parameters)
    if config.HasField("ensemble_scheduling"):
        return
    optional = {tensor.name for tensor in config.input if tensor.optional}
    others = {tensor.name for tensor in config.input} - optional
    is_python = config.backend == PYTHON
    for key in sorted(config.parameters):
        if key.startswith(CONDITION) and not is_python:
            yield key, "only an ensemble's steps have conditions"
        name = key.removeprefix(DEFAULT)
        if name == key or name in optional:
            continue
        near = get_close_matches(name, optional, n=1)
        if near:
            yield key, f"did you mean '{DEFAULT}{near[0]}'?"
        elif name in others or not is_python:
            yield key, f"the model has no optional input '{name}'"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
