"""Which models' batches go through device_io, and how."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.pb import model_config_pb2
from nereid_executor.backends.onnx.device_settings import device_io_settings
from tests.support.models.onnx_models import config


def model_config(text: str, *, pinned: bool = True) -> model_config_pb2.ModelConfig:
    """As the scheduler completes it."""
    written = config(
        """input { name: "x" data_type: TYPE_FP32 dims: 2 }
        output { name: "y" data_type: TYPE_FP32 dims: 2 } """
        + text
    )
    written.optimization.input_pinned_memory.enable = pinned
    written.optimization.output_pinned_memory.enable = pinned
    return written


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


def accelerator(name: str, option: str = "", value: str = "") -> str:
    option = f'parameters {{ key: "{option}" value: "{value}" }}' if option else ""
    return (
        "optimization { execution_accelerators { gpu_execution_accelerator "
        f'{{ name: "{name}" {option} }} }} }}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        parameter("device_io", "0") + "optimization { eager_batching: true }",
        parameter("device_input_cache_bytes", "0"),
        accelerator("cuda", "enable_cuda_graph", "0"),
        accelerator("cuda", "gpu_mem_limit", "1"),
        accelerator("tensorrt", "enable_cuda_graph", "1"),
        # It captures by itself.
        accelerator("tensorrt")[:-1] + "cuda { graphs: true } }",
        'optimization { eager_batching: true } input { name: "s" data_type: TYPE_STRING dims: 1 }',
    ],
)
def test_models_whose_batches_onnx_runtime_copies(text: str) -> None:
    assert device_io_settings(model_config(text)) is None


@pytest.mark.parametrize(
    ("text", "depth", "graphs", "cache_bytes"),
    [
        (parameter("device_io", "true"), 1, False, 0),
        ("optimization { eager_batching: true }", 2, False, 0),
        ("optimization { cuda { output_copy_stream: true } }", 2, False, 0),
        ("optimization { cuda { graphs: true } }", 1, True, 0),
        (accelerator("cuda", "enable_cuda_graph", "1"), 1, True, 0),
        (parameter("device_input_cache_bytes", "1000000"), 1, False, 1000000),
    ],
)
def test_models_whose_batches_go_through_device_io(
    text: str, depth: int, graphs: bool, cache_bytes: int
) -> None:
    settings = device_io_settings(model_config(text))
    assert settings is not None
    assert settings.options.depth == depth
    assert settings.graphs is graphs
    assert settings.options.cache_bytes == cache_bytes
    assert settings.options.pinned_inputs
    assert settings.options.pinned_outputs
    assert settings.options.cached_from_bytes == 64 << 10


def test_the_details() -> None:
    settings = device_io_settings(
        model_config(
            parameter("device_input_cache_bytes", "9000")
            + parameter("device_input_cache_min_bytes", "2000"),
            pinned=False,
        )
    )
    assert settings is not None
    assert settings.options.cached_from_bytes == 2000
    assert not settings.options.pinned_inputs
    assert not settings.options.pinned_outputs


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (parameter("device_io", "perhaps"), InvalidArgument, "'device_io'"),
        (parameter("device_input_cache_bytes", "1 GB"), InvalidArgument, "whole number"),
    ],
)
def test_what_cannot_be(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        device_io_settings(model_config(text))
