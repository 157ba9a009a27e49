"""Settings for device_io in a model's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.backends.device_io.pipeline import PipelineOptions
from nereid.backends.parameters import (
    parameters_of,
    parse_boolean,
    parse_count,
)
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

DEVICE_IO: Final = "device_io"
CACHE_BYTES: Final = "device_input_cache_bytes"
CACHED_FROM_BYTES: Final = "device_input_cache_min_bytes"
# Two batches overlap: one executes while the other is copied.
_OVERLAPPING: Final = 2
_GRAPH_OPTION: Final = "enable_cuda_graph"


class DeviceIoSettings(NamedTuple):
    """Settings of a model whose batches go through device_io."""

    options: PipelineOptions
    graphs: bool


def device_io_settings(config: model_config_pb2.ModelConfig) -> DeviceIoSettings | None:
    """Return a model's device_io settings; `None` if ONNX Runtime itself copies the tensors."""
    if any(tensor.data_type == model_config_pb2.TYPE_STRING for tensor in _tensors(config)):
        return None
    optimization = config.optimization
    parameters = parameters_of(config)
    overlaps = optimization.eager_batching or optimization.cuda.output_copy_stream
    graphs = _asks_for_graphs(config)
    cache_bytes = parse_count(config, parameters, CACHE_BYTES)
    asked = bool(overlaps or graphs or cache_bytes)
    if not parse_boolean(config, parameters, DEVICE_IO, default=asked):
        return None
    options = PipelineOptions(
        depth=_OVERLAPPING if overlaps else 1,
        pinned_inputs=optimization.input_pinned_memory.enable,
        pinned_outputs=optimization.output_pinned_memory.enable,
        cache_bytes=cache_bytes,
        cached_from_bytes=parse_count(
            config, parameters, CACHED_FROM_BYTES, PipelineOptions().cached_from_bytes
        ),
    )
    return DeviceIoSettings(options, graphs)


def _tensors(
    config: model_config_pb2.ModelConfig,
) -> list[model_config_pb2.ModelInput | model_config_pb2.ModelOutput]:
    return [*config.input, *config.output]


def _asks_for_graphs(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether graphs are wanted. False for TensorRT, which captures graphs by itself."""
    asks = config.optimization.cuda.graphs
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            return False
        parameters: Mapping[str, str] = accelerator.parameters
        if accelerator.name == "cuda" and parameters.get(_GRAPH_OPTION, "0") not in {"0", "false"}:
            asks = True
    return asks
