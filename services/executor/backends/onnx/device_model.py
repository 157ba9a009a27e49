"""An ONNX model whose batches go through device_io. Not tried on a GPU yet.

`python -m benchmarks.gpu` tries it, on a machine that has one.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from nereid.backends import TensorParts
from nereid.core.errors import InvalidArgument, NereidError
from nereid.services.executor.backends.device_io.cuda_device import CudaDevice
from nereid.services.executor.backends.device_io.graph_specs import graph_specs
from nereid.services.executor.backends.device_io.pipeline import Pipeline, Streams
from nereid.services.executor.backends.onnx.device_session import OrtDeviceSession, capture_graphs
from nereid.services.executor.backends.onnx.errors import translated_errors
from nereid.services.executor.backends.onnx.session_options import CUDA, TENSORRT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnxruntime as ort

    from nereid.backends import ModelDescription
    from nereid.core.tensors import Array
    from nereid.pb import model_config_pb2
    from nereid.services.executor.backends.device_io.device import Device
    from nereid.services.executor.backends.onnx.device_settings import DeviceIoSettings
    from nereid.services.executor.backends.onnx.session_options import Provider

    # A new session with these providers, and what the file states.
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
) -> DeviceOnnxModel:
    """A model on this GPU, by CUDA's number. device: in its place.

    Raises:
        NereidError: the GPU or ONNX Runtime refuses.
    """
    with ExitStack() as resources:
        if device is None:
            device = CudaDevice(gpu, priority=settings.priority, busy_wait=settings.busy_wait)
        streams = make_streams(device, settings, resources)
        session, description, graphs = _load_session(
            config, _with_stream(providers, streams.compute), settings, make_session
        )
        return DeviceOnnxModel(
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


def make_streams(device: Device, settings: DeviceIoSettings, resources: ExitStack) -> Streams:
    """Three where batches overlap, else one. resources: gets what destroys them."""

    def make_stream() -> int:
        stream = device.create_stream()
        resources.callback(device.destroy_stream, stream)
        return stream

    if settings.options.depth > 1:
        return Streams(make_stream(), make_stream(), make_stream())
    return Streams(*[make_stream()] * 3)


def _with_stream(providers: Sequence[Provider], stream: int) -> list[Provider]:
    """Providers that execute on this stream, and capture no graphs by themselves."""
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
    """A session, and whether it captures graphs.

    Triton ignores the setting for ONNX models: one that cannot have graphs runs without.
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


class DeviceOnnxModel:
    """A session and its pipeline; used by its instance's thread alone."""

    bytes_as_text = False
    escapes_bytes = False

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        config: model_config_pb2.ModelConfig,
        session: OrtDeviceSession,
        description: ModelDescription,
        *,
        device: Device,
        streams: Streams,
        settings: DeviceIoSettings,
        resources: ExitStack,
    ) -> None:
        """resources: collects what to close; the model takes it over at the end of a success."""
        self.description = description
        self.pipeline_depth = settings.options.depth
        graphs = None
        dims: dict[str, Any] = {
            each.name: each.dims for each in description.inputs if not each.optional
        }
        if settings.graphs and None not in dims.values() and not session.host_inputs:
            try:
                with ExitStack() as memory, translated_errors():
                    specs = graph_specs(_with_graphs(config), dims)
                    graphs = capture_graphs(
                        session,
                        description,
                        specs,
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
        self.pipeline = Pipeline(device, session, streams, settings.options, graphs)
        resources.callback(self.pipeline.close)
        self._resources = resources.pop_all()

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        self.submit_batch({name: parts_of(array) for name, array in inputs.items()}, outputs)
        return self.collect_batch()

    def submit_batch(self, inputs: Mapping[str, TensorParts], outputs: Sequence[str]) -> None:
        with translated_errors():
            self.pipeline.submit(inputs, outputs)

    def is_batch_complete(self) -> bool:
        return self.pipeline.is_complete()

    def collect_batch(self) -> Sequence[Array]:
        return self.pipeline.collect()

    def close(self) -> None:
        self._resources.close()


def parts_of(array: Array) -> TensorParts:
    """An array as one part."""
    if array.dtype.hasobject:
        raise InvalidArgument("strings cannot be copied to a GPU")
    flat = array.reshape(-1).view("u1")
    return TensorParts([flat.data], array.shape, array.dtype)


def _with_graphs(config: model_config_pb2.ModelConfig) -> model_config_pb2.ModelConfig:
    """The configuration, with graphs asked for as Triton does it."""
    asking = type(config)()
    asking.CopyFrom(config)
    asking.optimization.cuda.graphs = True
    return asking
