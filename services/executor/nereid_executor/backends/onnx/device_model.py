"""ONNX models whose batches go through device_io.

The code has not been tried on a GPU yet; `python -m benchmarks.gpu` tries it on one.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from nereid.backends.device_io.captured_graphs import capture_graphs
from nereid.backends.device_io.cuda_device import open_gpu
from nereid.backends.device_io.device_model import DeviceModel, make_streams
from nereid.backends.device_io.graph_specs import graph_specs
from nereid.backends.device_io.pipeline import Pipeline
from nereid.core.errors import NereidError
from nereid_executor.backends.onnx.device_session import OrtDeviceSession
from nereid_executor.backends.onnx.session_options import CUDA, TENSORRT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnxruntime as ort

    from nereid.backends import ModelDescription
    from nereid.backends.device_io.device import Device
    from nereid.backends.device_io.pipeline import Streams
    from nereid.pb import model_config_pb2
    from nereid_executor.backends.onnx.device_settings import DeviceIoSettings
    from nereid_executor.backends.onnx.session_options import Provider

    MakeSession = Callable[[Sequence[Provider]], tuple[ort.InferenceSession, ModelDescription]]

_log = logging.getLogger(__name__)

_STREAM: Final = "user_compute_stream"
_GRAPHS: Final = "enable_cuda_graph"


def load(  # noqa: PLR0913 (called once)
    config: model_config_pb2.ModelConfig,
    gpu: int,
    providers: Sequence[Provider],
    settings: DeviceIoSettings,
    make_session: MakeSession,
    *,
    device: Device | None = None,
) -> DeviceModel:
    """Return a model on the GPU that has this number in CUDA."""
    with ExitStack() as resources:
        device = device or open_gpu(gpu, config)
        streams = make_streams(device, settings.options.depth, resources)
        session, description, graphs = _load_session(
            config, _with_stream(providers, streams.compute), settings, make_session
        )
        return make_model(
            config,
            OrtDeviceSession(
                config,
                session,
                description,
                device_type="cuda",
                device_number=gpu,
                graphs=graphs,
            ),
            description,
            device=device,
            streams=streams,
            settings=settings._replace(graphs=graphs),
            resources=resources,
        )


def _with_stream(providers: Sequence[Provider], stream: int) -> list[Provider]:
    return [
        (name, {**options, _STREAM: str(stream), **({_GRAPHS: "0"} if name == CUDA else {})})
        if name in {CUDA, TENSORRT}
        else (name, options)
        for name, options in providers
    ]


def _load_session(
    config: model_config_pb2.ModelConfig,
    providers: list[Provider],
    settings: DeviceIoSettings,
    make_session: MakeSession,
) -> tuple[ort.InferenceSession, ModelDescription, bool]:
    """Return a session, its description, and whether the session captures graphs.

    As on Triton, a model that cannot have graphs runs without them.
    """
    if settings.graphs:
        capturing = [
            (name, {**options, _GRAPHS: "1"} if name == CUDA else options)
            for name, options in providers
        ]
        try:
            return *make_session(capturing), True
        except NereidError as error:
            _log.warning("model %s runs without CUDA graphs: %s", config.name, error.message)
    return *make_session(providers), False


def make_model(  # noqa: PLR0913 (by keyword)
    config: model_config_pb2.ModelConfig,
    session: OrtDeviceSession,
    description: ModelDescription,
    *,
    device: Device,
    streams: Streams,
    settings: DeviceIoSettings,
    resources: ExitStack,
) -> DeviceModel:
    """Return a model on a device, with graphs if they are wanted and possible."""
    graphs = None
    dims: dict[str, Any] = {
        tensor.name: tensor.dims for tensor in description.inputs if not tensor.optional
    }
    if settings.graphs and None not in dims.values() and not session.host_inputs:
        try:
            with ExitStack() as memory:
                graphs = capture_graphs(
                    session,
                    description,
                    graph_specs(_with_graphs(config), dims),
                    device,
                    memory,
                    compute=streams.compute,
                    depth=settings.options.depth,
                    batching=config.max_batch_size > 0,
                )
                resources.enter_context(memory.pop_all())
        except NereidError as error:
            _log.warning("model %s runs without CUDA graphs: %s", config.name, error.message)
    resources.callback(session.close)
    pipeline = Pipeline(device, session, streams, settings.options, graphs)
    return DeviceModel(description, pipeline, resources)


def _with_graphs(config: model_config_pb2.ModelConfig) -> model_config_pb2.ModelConfig:
    asking = type(config)()
    asking.CopyFrom(config)
    asking.optimization.cuda.graphs = True
    return asking
