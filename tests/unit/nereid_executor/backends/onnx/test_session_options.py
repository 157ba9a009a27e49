"""A configuration's options as ONNX Runtime takes them."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import onnxruntime as ort
import pytest

from nereid.core.errors import InvalidArgument, Unavailable, Unimplemented
from nereid_executor.backends.onnx.session_options import (
    CPU,
    CUDA,
    OPENVINO,
    TENSORRT,
    bare_options,
    execution_providers,
    keep_engines,
    register_operators,
    run_options,
    session_options,
)
from tests.support.models.onnx_models import config

ALL = (TENSORRT, CUDA, OPENVINO, CPU)


def parameters(**values: str) -> str:
    return " ".join(
        f'parameters {{ key: "{key.replace("__", ".")}" value {{ string_value: "{value}" }} }}'
        for key, value in values.items()
    )


def gpu_accelerator(name: str, **values: str) -> str:
    return (
        f"optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ name: '{name}' "
        + (
            " ".join(
                f"parameters {{ key: '{key}' value: '{value}' }}" for key, value in values.items()
            )
            + "} } }"
        )
    )


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0, ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
        (-1, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC),
        (1, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
        (2, ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
    ],
)
def test_the_graphs_level(level: int, expected: object) -> None:
    options = session_options(config(f"optimization {{ graph {{ level: {level} }} }}"), {})
    assert options.graph_optimization_level == expected


def test_parameters_become_session_options() -> None:
    text = parameters(
        intra_op_thread_count="3",
        inter_op_thread_count="2",
        execution_mode="1",
        enable_mem_arena="false",
        enable_mem_pattern="0",
        session__intra_op__allow_spinning="1",
    )
    options = session_options(config(text), {}, threads=8)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"


def test_defaults_leave_the_processor_to_others_between_requests() -> None:
    options = session_options(config(""), {})
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.enable_cpu_mem_arena
    assert options.intra_op_num_threads == 0
    assert session_options(config(""), {}, threads=8).intra_op_num_threads == 8
    # Written, and left to ONNX Runtime.
    open_count = config(parameters(intra_op_thread_count="0"))
    assert session_options(open_count, {}, threads=8).intra_op_num_threads == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (parameters(execution_mode="2"), "expected values for execution_mode are 0 or 1 but got 2"),
        (parameters(intra_op_thread_count="x"), "expects a whole number but got 'x'"),
        (parameters(enable_mem_arena="x"), "'enable_mem_arena' expected true or false but got 'x'"),
    ],
)
def test_values_that_an_option_does_not_take(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        session_options(config(text), {})
    assert "unable to load model 'm'" in caught.value.message
    assert reason in caught.value.message


def test_the_global_thread_pool_is_made_once() -> None:
    # In a process of its own: every session of this one would have to share the threads.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        apart.submit(make_global_threads).result()


def make_global_threads() -> None:
    settings = {"enable-global-threadpool": "1", "intra_op_thread_count": "1"}
    for _ in range(2):
        assert not session_options(config(""), settings).use_per_session_threads
    with pytest.raises(InvalidArgument, match="global thread pool"):
        session_options(config(""), settings | {"intra_op_thread_count": "2"})
    # From then on every session has to share them, also one that never asked.
    assert not session_options(config(""), {}).use_per_session_threads
    assert not bare_options().use_per_session_threads


def test_arena_shrinkage_is_an_option_of_each_run() -> None:
    text = parameters(memory__enable_memory_arena_shrinkage="cpu:0")
    options = run_options(config(text))
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


def test_an_operator_library_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    lacking = config("model_operations { op_library_filename: 'ops.so' }")
    with pytest.raises(InvalidArgument, match=f"operator library '{tmp_path}/ops.so'"):
        register_operators(lacking, tmp_path / "1", ort.SessionOptions())


def test_providers_on_the_cpu() -> None:
    assert execution_providers(config(""), None, [CPU]) == [(CPU, {})]
    openvino = config(
        "optimization { execution_accelerators { cpu_execution_accelerator { name: 'openvino' } } }"
    )
    assert execution_providers(openvino, None, ALL) == [(OPENVINO, {}), (CPU, {})]
    with pytest.raises(Unimplemented, match="has no OpenVINOExecutionProvider"):
        execution_providers(openvino, None, [CPU])


def test_providers_on_a_gpu_have_its_number() -> None:
    assert execution_providers(config(""), 3, ALL) == [
        (CUDA, {"cudnn_conv_algo_search": "EXHAUSTIVE", "device_id": "3"}),
        (CPU, {}),
    ]


def test_tensorrts_settings_go_by_tritons_names() -> None:
    text = gpu_accelerator(
        "tensorrt",
        precision_mode="FP16",
        max_workspace_size_bytes="1024",
        int8_use_native_calibration_table="false",
        trt_engine_cache_enable="true",
    )
    tensorrt, cuda, cpu = execution_providers(config(text), 1, ALL)
    assert tensorrt == (
        TENSORRT,
        {
            "trt_fp16_enable": "1",
            "trt_max_workspace_size": "1024",
            "trt_int8_use_native_calibration_table": "0",
            "trt_engine_cache_enable": "1",
            "device_id": "1",
        },
    )
    assert (cuda[0], cpu[0]) == (CUDA, CPU)


def test_cudas_settings_by_accelerator_and_by_parameters() -> None:
    text = parameters(cudnn_conv_algo_search="2", gpu_mem_limit="99", arena_extend_strategy="1")
    text += gpu_accelerator("cuda", cudnn_conv_algo_search="HEURISTIC", use_tf32="false")
    (cuda, _) = execution_providers(config(text), 0, ALL)
    assert cuda[1] == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "99",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
        "device_id": "0",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (gpu_accelerator("x"), "unknown Execution Accelerator 'x' is requested"),
        (gpu_accelerator("tensorrt", precision_mode="FP4"), "unsupported precision mode 'FP4'"),
        (
            gpu_accelerator("tensorrt", size="1"),
            "unknown parameter 'size' is provided for TensorRT",
        ),
        (
            gpu_accelerator("cuda", cudnn_conv_algo_search="7"),
            "unsupported cudnn_conv_algo_search value '7' is requested",
        ),
    ],
)
def test_accelerators_that_are_configured_wrongly(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        execution_providers(config(text), 0, ALL)


def test_accelerators_that_there_are_not() -> None:
    other = gpu_accelerator("x").replace("gpu_ex", "cpu_ex")
    with pytest.raises(InvalidArgument, match="unknown Execution Accelerator 'x' is requested"):
        execution_providers(config(other), None, ALL)
    with pytest.raises(Unimplemented, match="has no Tensorrt"):
        execution_providers(config(gpu_accelerator("tensorrt")), 0, [CUDA, CPU])
    with pytest.raises(Unavailable, match="has no CUDA"):
        execution_providers(config(""), 0, [CPU])


def test_tensorrt_keeps_engines_beside_the_model_if_it_is_not_said_where(tmp_path: Path) -> None:
    asked = {"trt_engine_cache_enable": "true", "trt_timing_cache_enable": "1"}
    providers = execution_providers(config(gpu_accelerator("tensorrt", **asked)), 0, ALL)
    tensorrt, cuda, _ = keep_engines(providers, tmp_path)
    assert tensorrt[1]["trt_engine_cache_path"] == str(tmp_path)
    assert tensorrt[1]["trt_timing_cache_path"] == str(tmp_path)
    assert cuda == providers[1]
    elsewhere = config(gpu_accelerator("tensorrt", trt_engine_cache_path="/cache", **asked))
    tensorrt = keep_engines(execution_providers(elsewhere, 0, ALL), tmp_path)[0]
    assert tensorrt[1]["trt_engine_cache_path"] == "/cache"
    # Without caches, and where nothing can be written, options are as they were.
    bare = execution_providers(config(gpu_accelerator("tensorrt")), 0, ALL)
    assert keep_engines(bare, tmp_path) == bare
    assert keep_engines(providers, tmp_path / "missing") == providers
