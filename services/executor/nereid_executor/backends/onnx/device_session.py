"""Sessions of ONNX Runtime on tensors that are already on the device, and graphs of their runs."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

from nereid.backends.device_io.device import DeviceTensor
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid_executor.backends.onnx.errors import translated_errors
from nereid_executor.backends.onnx.session_options import run_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnxruntime as ort

    from nereid.backends import ModelDescription
    from nereid.pb import model_config_pb2

# Run options. With the first, a run returns once its kernels are enqueued. The second has the
# number of the graph that the run captures or launches.
_NO_SYNCHRONIZATION: Final = "disable_synchronize_execution_providers"
_GRAPH: Final = "gpu_graph_id"
_NO_GRAPH: Final = "-1"
_ONNX_BFLOAT16: Final = 16
HOST: Final = "cpu"


class OrtDeviceSession:
    """A session whose provider uses the compute stream. Only its instance's thread uses it."""

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        config: model_config_pb2.ModelConfig,
        session: ort.InferenceSession,
        description: ModelDescription,
        *,
        device_type: str,
        device_number: int,
        graphs: bool = False,
    ) -> None:
        self._session = session
        self._place = (device_type, device_number)
        places = {} if device_type == HOST else input_places(session, description)
        # Inputs that the session wants on the host must be bound there. If they were bound on the
        # device, ONNX Runtime would copy them at once, without waiting for our streams.
        self.host_inputs = frozenset(name for name, place in places.items() if place == HOST)
        self.reads_early = None in places.values()
        tensors = (*description.inputs, *description.outputs)
        self._dtypes = {tensor.name: NUMPY_TYPE[tensor.datatype] for tensor in tensors}
        # numpy lacks BF16, so BF16 has ONNX's number instead of a numpy type.
        self._elements: dict[str, Any] = {
            tensor.name: (
                _ONNX_BFLOAT16 if tensor.datatype == "BF16" else NUMPY_TYPE[tensor.datatype].type
            )
            for tensor in tensors
        }
        self._config = config
        self._options = _asynchronous(config)
        if graphs:
            self._options.add_run_config_entry(_GRAPH, _NO_GRAPH)
        self._graph_ids = count(1)

    @translated_errors()
    def run(self, inputs: Mapping[str, DeviceTensor], outputs: Sequence[str]) -> list[DeviceTensor]:
        """Enqueue an execution. The returned outputs are in memory of ONNX Runtime."""
        binding = self._bind_inputs(inputs)
        for name in outputs:
            binding.bind_output(name, *self._place)
        self._session.run_with_iobinding(binding, self._options)
        return [
            DeviceTensor(value.data_ptr(), tuple(value.shape()), self._dtypes[name], value)
            for name, value in zip(outputs, binding.get_outputs(), strict=True)
        ]

    @translated_errors()
    def capture(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor]
    ) -> Callable[[], None]:
        """Capture a graph on this memory and launch it once; return a function that launches it."""
        binding = self._bind_inputs(inputs)
        for name, tensor in outputs.items():
            binding.bind_output(
                name, *self._place, self._elements[name], tensor.shape, tensor.address
            )
        options = _asynchronous(self._config)
        options.add_run_config_entry(_GRAPH, str(next(self._graph_ids)))

        @translated_errors()
        def launch() -> None:
            # The first run with a graph's number captures the graph. Later runs launch it.
            self._session.run_with_iobinding(binding, options)

        launch()
        return launch

    def close(self) -> None:
        """Free the session. Call this before the session's stream is destroyed."""
        del self._session

    def _bind_inputs(self, inputs: Mapping[str, DeviceTensor]) -> Any:
        binding = self._session.io_binding()
        for name, tensor in inputs.items():
            place = (HOST, 0) if name in self.host_inputs else self._place
            binding.bind_input(name, *place, self._elements[name], tensor.shape, tensor.address)
        return binding


def input_places(
    session: ort.InferenceSession, description: ModelDescription
) -> dict[str, str | None]:
    """Map each input to its place: "cpu", "cuda", or `None` if the session does not say."""
    names = [tensor.name for tensor in description.inputs if not tensor.optional]
    find = getattr(session, "get_input_memory_infos", None)
    infos = [] if find is None else [str(info.name).lower() for info in find()]
    if len(infos) != len(names):
        # ONNX Runtime before 1.23 does not tell the places.
        return dict.fromkeys(names)
    known = {HOST: HOST, "cuda": "cuda", "cudapinned": HOST, "cuda_cpu": HOST}
    return {name: known.get(info) for name, info in zip(names, infos, strict=True)}


def _asynchronous(config: model_config_pb2.ModelConfig) -> ort.RunOptions:
    options = run_options(config)
    options.add_run_config_entry(_NO_SYNCHRONIZATION, "1")
    return options
