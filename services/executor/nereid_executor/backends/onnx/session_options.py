"""Session options and execution providers, from parameters of Triton's ONNX Runtime backend."""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Any, Final

import onnxruntime as ort

from nereid.backends.parameters import (
    parameters_of,
    parse_boolean,
    parse_count,
    parse_threads,
)
from nereid.core.errors import InvalidArgument, Unavailable, Unimplemented

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nereid.pb import model_config_pb2

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
OPENVINO: Final = "OpenVINOExecutionProvider"

Provider = tuple[str, dict[str, str]]

_LEVELS: Final = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_EXECUTION_MODES: Final = {
    0: ort.ExecutionMode.ORT_SEQUENTIAL,
    1: ort.ExecutionMode.ORT_PARALLEL,
}
# ONNX Runtime's warnings address the author of the graph, and repeat for each instance.
_ERRORS_ONLY: Final = 3
_FATAL_ONLY: Final = 4
_FILE_SETTING: Final = re.compile(r"session\..*(file|profiling)")
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"

_PRECISIONS: Final = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_TENSORRT_NAMES: Final = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
# Key: an option that enables a TensorRT cache. Value: the option with the cache's directory.
_CACHES: Final = {
    "trt_engine_cache_enable": "trt_engine_cache_path",
    "trt_timing_cache_enable": "trt_timing_cache_path",
}
# CUDA settings that are also model parameters in Triton. The inner mapping has Triton's number as
# key and the name of the value as value.
_CUDA_VALUES: Final[dict[str, dict[str, str]]] = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "gpu_mem_limit": {},
    "do_copy_in_default_stream": {},
}
_HARMLESS: Final = frozenset({*_CUDA_VALUES, "enable_cuda_graph"})


def bare_options() -> ort.SessionOptions:
    """Return the options that every session in this process has."""
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    # Once global threads exist, ONNX Runtime refuses sessions with their own threads.
    options.use_per_session_threads = not _make_global_threads.cache_info().currsize
    return options


def session_options(
    config: model_config_pb2.ModelConfig, settings: Mapping[str, str], threads: int = 0
) -> ort.SessionOptions:
    """Return the session options from the configuration and the backend's settings.

    threads: if 0, ONNX Runtime starts one per core of the machine, bound to the first cores.
    """
    parameters = parameters_of(config)
    options = bare_options()
    level = config.optimization.graph.level
    options.graph_optimization_level = _LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    # Spinning threads would take processor time from other services.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    mode = parse_count(config, parameters, "execution_mode")
    if mode not in _EXECUTION_MODES:
        raise InvalidArgument(
            f"unable to load model '{config.name}', expected values for execution_mode are 0 or 1 "
            f"but got {mode}"
        )
    options.execution_mode = _EXECUTION_MODES[mode]
    options.intra_op_num_threads = parse_threads(
        config, parameters, "intra_op_thread_count", threads
    )
    options.inter_op_num_threads = parse_threads(config, parameters, "inter_op_thread_count")
    if parse_boolean(config, settings, "enable-global-threadpool", default=False):
        _make_global_threads(
            parse_threads(config, settings, "intra_op_thread_count"),
            parse_threads(config, settings, "inter_op_thread_count"),
        )
        options.use_per_session_threads = False
    options.enable_cpu_mem_arena = parse_boolean(
        config, parameters, "enable_mem_arena", default=True
    )
    options.enable_mem_pattern = parse_boolean(
        config, parameters, "enable_mem_pattern", default=True
    )
    for name, value in parameters.items():
        if name.startswith("session."):
            options.add_session_config_entry(name, value)
    return options


@functools.cache
def _make_global_threads(intra_op: int, inter_op: int) -> None:
    """Create the thread pool that all sessions share. A process can do this only once."""
    try:
        ort.set_global_thread_pool_sizes(intra_op, inter_op)
    except Exception as error:
        raise InvalidArgument(f"onnxruntime's global thread pool: {error}") from error


def run_options(config: model_config_pb2.ModelConfig) -> ort.RunOptions:
    """Return the options of each run."""
    options = ort.RunOptions()
    # ONNX Runtime would also write a run's error to stderr. Clients get the error anyway.
    options.log_severity_level = _FATAL_ONLY
    if _SHRINKAGE in config.parameters:
        options.add_run_config_entry(_SHRINKAGE, config.parameters[_SHRINKAGE].string_value)
    return options


def register_operators(
    config: model_config_pb2.ModelConfig, version_path: Path, options: ort.SessionOptions
) -> None:
    """Load the libraries of model_operations. Relative names are in the model's directory."""
    for name in config.model_operations.op_library_filename:
        path = version_path.parent / name
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:
            raise InvalidArgument(
                f"unable to load model '{config.name}', operator library '{path}': {error}"
            ) from error


def loads_native_code(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether a model has more than a graph and its weights, which are data.

    Operator libraries are native code. TensorRT and OpenVINO load plugins and compiled code from
    paths in their parameters, and some of CUDA's are addresses. Settings of a session read and
    write files.
    """
    accelerators = config.optimization.execution_accelerators
    return (
        bool(config.model_operations.op_library_filename or accelerators.cpu_execution_accelerator)
        or not all(map(_is_harmless, accelerators.gpu_execution_accelerator))
        or any(map(_FILE_SETTING.match, config.parameters))
    )


def _is_harmless(accelerator: _Accelerator) -> bool:
    return accelerator.name == "cuda" and _HARMLESS.issuperset(accelerator.parameters)


def execution_providers(
    config: model_config_pb2.ModelConfig, gpu: int | None, available: Sequence[str]
) -> list[Provider]:
    """Return an instance's execution providers, first choice first. gpu: `None` for the CPU.

    Raises InvalidArgument for an unknown accelerator or setting, Unimplemented or Unavailable if
    the installed ONNX Runtime lacks the accelerator or CUDA.
    """
    accelerators = config.optimization.execution_accelerators
    if gpu is None:
        chosen = [_cpu_accelerator(config, one) for one in accelerators.cpu_execution_accelerator]
        chosen.append((CPU, {}))
    else:
        if CUDA not in available:
            raise Unavailable(
                f"unable to load model '{config.name}', the executor's onnxruntime has no CUDA; "
                "install onnxruntime-gpu there"
            )
        chosen = _gpu_providers(config, gpu)
    for name, _ in chosen:
        if name not in available:
            raise Unimplemented(
                f"unable to load model '{config.name}', the executor's onnxruntime has no {name}"
            )
    return chosen


def keep_engines(providers: Sequence[Provider], version_path: Path) -> list[Provider]:
    """If caches are on without a directory, let TensorRT use the version's, if it is writable."""
    if not os.access(version_path, os.W_OK):
        return list(providers)
    kept = []
    for name, options in providers:
        missing = {
            path: str(version_path)
            for enable, path in _CACHES.items()
            if name == TENSORRT and options.get(enable) == "1" and path not in options
        }
        kept.append((name, {**options, **missing}))
    return kept


_Accelerator = Any  # ModelOptimizationPolicy.ExecutionAccelerators.Accelerator


def _cpu_accelerator(config: model_config_pb2.ModelConfig, accelerator: _Accelerator) -> Provider:
    if accelerator.name != "openvino":
        raise _unknown_accelerator(config, accelerator)
    return OPENVINO, dict(accelerator.parameters)


def _gpu_providers(config: model_config_pb2.ModelConfig, gpu: int) -> list[Provider]:
    device = {"device_id": str(gpu)}
    # This is Triton's default. cuDNN searches once for each shape.
    cuda = {"cudnn_conv_algo_search": "EXHAUSTIVE"}
    for name in _CUDA_VALUES.keys() & config.parameters.keys():
        cuda[name] = _cuda_value(config, name, config.parameters[name].string_value)
    chosen = []
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            chosen.append((TENSORRT, _tensorrt_options(config, accelerator.parameters) | device))
        elif accelerator.name == "cuda":
            for name, value in accelerator.parameters.items():
                cuda[name] = _cuda_value(config, name, value)
        else:
            raise _unknown_accelerator(config, accelerator)
    return [*chosen, (CUDA, cuda | device), (CPU, {})]


def _tensorrt_options(
    config: model_config_pb2.ModelConfig, parameters: Mapping[str, str]
) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parameters.items():
        if name == "precision_mode":
            if value not in _PRECISIONS:
                raise InvalidArgument(
                    f"unable to load model '{config.name}', "
                    f"unsupported precision mode '{value}' is requested"
                )
            options |= _PRECISIONS[value]
        elif name in _TENSORRT_NAMES:
            options[_TENSORRT_NAMES[name]] = _numeric_boolean(value)
        elif name.startswith("trt_"):
            options[name] = _numeric_boolean(value)
        else:
            raise InvalidArgument(
                f"unable to load model '{config.name}', unknown parameter '{name}' is provided "
                "for TensorRT Execution Accelerator"
            )
    return options


def _cuda_value(config: model_config_pb2.ModelConfig, name: str, value: str) -> str:
    names = _CUDA_VALUES.get(name, {})
    if names and value not in names and value not in names.values():
        raise InvalidArgument(
            f"unable to load model '{config.name}', unsupported {name} value '{value}' is requested"
        )
    return names.get(value) or _numeric_boolean(value)


def _numeric_boolean(value: str) -> str:
    return {"true": "1", "false": "0"}.get(value.lower(), value)


def _unknown_accelerator(
    config: model_config_pb2.ModelConfig, accelerator: _Accelerator
) -> InvalidArgument:
    return InvalidArgument(
        f"unable to load model '{config.name}', "
        f"unknown Execution Accelerator '{accelerator.name}' is requested"
    )
