"""A model on the fake device: the whole data path, with ONNX Runtime's CPU provider."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from benchmarks.gpu.host_device import HostDevice
from nereid.backends import InstanceSpec
from nereid.backends.device_io.device_model import DeviceModel, make_streams
from nereid_executor.backends.onnx import backend
from nereid_executor.backends.onnx.device_model import make_model
from nereid_executor.backends.onnx.device_session import OrtDeviceSession
from nereid_executor.backends.onnx.device_settings import device_io_settings

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.pb import model_config_pb2


def load_on_host(
    config: model_config_pb2.ModelConfig, version_path: Path, device: HostDevice | None = None
) -> DeviceModel:
    """Load a model that is configured to use device_io; graphs are launched, but not captured."""
    device = device or HostDevice()
    settings = device_io_settings(config)
    assert settings is not None, "the configuration does not ask for device_io"
    spec = InstanceSpec(config=config, version=1, version_path=version_path, name=config.name)
    description = backend.describe(config, version_path)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    path = spec.version_path / backend.DEFAULT_FILENAME
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with ExitStack() as resources:
        streams = make_streams(device, settings.options.depth, resources)
        return make_model(
            config,
            OrtDeviceSession(
                config,
                _StreamedSession(session, device, streams.compute),
                description,
                device_type="cpu",
                device_number=0,
            ),
            description,
            device=device,
            streams=streams,
            settings=settings,
            resources=resources,
        )


class _StreamedSession:
    """Session of a provider that executes at once: after what is on the stream."""

    def __init__(self, session: ort.InferenceSession, device: HostDevice, stream: int) -> None:
        self._session, self._device, self._stream = session, device, stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: ort.RunOptions) -> None:
        self._device.synchronize_stream(self._stream)
        self._session.run_with_iobinding(binding, options)
