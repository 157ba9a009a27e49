"""Execution of a TensorRT engine on tensors in device memory, and capture of graphs.

All contexts of an instance share scratch memory, since only one of them executes at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.backends.device_io.captured_graphs import capture_graphs
from nereid.backends.device_io.device import DeviceTensor
from nereid.backends.device_io.device_model import DeviceModel, make_streams
from nereid.backends.device_io.graph_specs import graph_specs
from nereid.backends.device_io.pipeline import Pipeline, PipelineOptions
from nereid.backends.parameters import parameters_of
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.shapes import VARIABLE
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid_tensorrt.optimization_profiles import (
    choose_profile,
    no_profile_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid.backends.device_io.device import GraphDevice
    from nereid.pb import model_config_pb2
    from nereid_tensorrt.engine import Engine, OutputAllocator
    from nereid_tensorrt.optimization_profiles import (
        Profile,
        Shape,
        Shapes,
    )

_STRATEGY: Final = "execution_context_allocation_strategy"
_STRATEGIES: Final = ("STATIC", "ON_PROFILE_CHANGE")


def make_model(
    config: model_config_pb2.ModelConfig,
    engine: Engine,
    profiles: Mapping[int, Profile],
    device: GraphDevice,
) -> DeviceModel:
    """Return a model with a context per profile, and with graphs if these are configured."""
    optimization = config.optimization
    every_profile = _strategy(config) == _STRATEGIES[0]
    with ExitStack() as resources:
        streams = make_streams(device, 1, resources)
        session = EngineSession(
            config.name, engine, profiles, device, streams.compute, every_profile=every_profile
        )
        resources.callback(session.close)
        inputs = {tensor.name: tensor.dims or () for tensor in engine.description.inputs}
        graphs = None
        if specs := graph_specs(config, inputs):
            graphs = capture_graphs(
                session,
                engine.description,
                specs,
                device,
                resources,
                compute=streams.compute,
                depth=1,
                batching=config.max_batch_size > 0,
            )
        options = PipelineOptions(
            pinned_inputs=optimization.input_pinned_memory.enable,
            pinned_outputs=optimization.output_pinned_memory.enable,
        )
        pipeline = Pipeline(device, session, streams, options, graphs)
        return DeviceModel(engine.description, pipeline, resources)


class _PreparedContext(NamedTuple):
    context: Any
    allocators: Mapping[str, OutputAllocator]


class EngineSession:
    """The Session of one instance, used by the instance's thread; a run overwrites the outputs."""

    host_inputs: frozenset[str] = frozenset()
    reads_early = False

    def __init__(  # noqa: PLR0913 (called once)
        self,
        name: str,
        engine: Engine,
        profiles: Mapping[int, Profile],
        device: GraphDevice,
        stream: int,
        *,
        every_profile: bool,
    ) -> None:
        """Create the contexts; every_profile allocates scratch memory for all profiles."""
        self._name, self._engine, self._profiles = name, engine, profiles
        self._device, self._stream = device, stream
        tensors = engine.description.outputs
        # Contexts of captured graphs. A graph uses the memory of its context.
        self._captured: list[Any] = []
        self._dtypes = {tensor.name: NUMPY_TYPE[tensor.datatype] for tensor in tensors}
        with ExitStack() as resources:
            self._resources = resources
            scratch_bytes = engine.scratch_bytes(None if every_profile else profiles.keys())
            self._scratch = self._allocate(scratch_bytes), scratch_bytes
            contexts = {number: self._make_context(number) for number in profiles}
            sizes = self._output_sizes(contexts)
            self._outputs = {name: (self._allocate(size), size) for name, size in sizes.items()}
            self._contexts = {
                number: self._prepare_context(context) for number, context in contexts.items()
            }
            self._resources = resources.pop_all()

    def run(self, inputs: Mapping[str, DeviceTensor], outputs: Sequence[str]) -> list[DeviceTensor]:
        """Enqueue an execution on the compute stream; return the outputs."""
        context, allocators = self._contexts[self._choose_profile(inputs)]
        self._bind_inputs(context, inputs)
        self._enqueue(context)
        if allocators:
            self._device.synchronize_stream(self._stream)
        results = []
        for name in outputs:
            allocator = allocators.get(name)
            shape: Shape = (
                tuple(context.get_tensor_shape(name)) if allocator is None else allocator.shape
            )
            results.append(DeviceTensor(self._outputs[name][0], shape, self._dtypes[name]))
        return results

    def capture(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor]
    ) -> Callable[[], None]:
        """Capture a graph for these shapes and addresses; return the function that launches it."""
        context = self._make_context(self._choose_profile(inputs))
        self._bind_inputs(context, inputs)
        if unknown := self._unknown_outputs(context):
            raise InvalidArgument(
                f"unable to load model '{self._name}', CUDA graphs cannot make outputs "
                f"whose shapes depend on data: {', '.join(unknown)}"
            )
        for name, tensor in outputs.items():
            self._set_address(context, name, tensor.address)
        # The first execution with new shapes does set-up work, which must not be captured.
        self._enqueue(context)
        self._device.synchronize_stream(self._stream)
        graph = self._device.capture_graph(self._stream, lambda: self._enqueue(context))
        self._resources.callback(self._device.destroy_graph, graph)
        self._captured.append(context)
        return lambda: self._device.launch_graph(graph, self._stream)

    def close(self) -> None:
        """Free the contexts and the memory."""
        # Contexts are freed before the memory that they refer to.
        self._contexts.clear()
        self._captured.clear()
        self._resources.close()

    def _allocate(self, size_bytes: int) -> int:
        # Even an empty tensor needs an address.
        address = self._device.allocate_device(max(1, size_bytes))
        self._resources.callback(self._device.free_device, address)
        return address

    def _make_context(self, profile: int) -> Any:
        return self._engine.create_context(profile, self._stream, self._scratch)

    def _output_sizes(self, contexts: Mapping[int, Any]) -> dict[str, int]:
        """Return the outputs' largest sizes in bytes; contexts keep the largest input shapes."""
        sizes = dict.fromkeys(self._dtypes, 0)
        for number, context in contexts.items():
            for name, each in self._profiles[number].items():
                self._set_shape(context, name, each.max)
            for name in sizes:
                size = int(context.get_max_output_size(name))
                if size < 0:
                    raise self._engine.last_call_error(f"unable to get the size of '{name}'")
                sizes[name] = max(size, sizes[name])
        return sizes

    def _prepare_context(self, context: Any) -> _PreparedContext:
        """Set the outputs' addresses in a context whose input shapes are already set."""
        for name, (address, _) in self._outputs.items():
            self._set_address(context, name, address)
        allocators = {
            name: self._engine.make_allocator(*self._outputs[name])
            for name in self._unknown_outputs(context)
        }
        for name, allocator in allocators.items():
            context.set_output_allocator(name, allocator)
        return _PreparedContext(context, allocators)

    def _unknown_outputs(self, context: Any) -> list[str]:
        """Return the outputs whose shapes depend on data; the context must have input shapes."""
        return [name for name in self._dtypes if VARIABLE in tuple(context.get_tensor_shape(name))]

    def _choose_profile(self, inputs: Mapping[str, DeviceTensor]) -> int:
        shapes: Shapes = {name: tensor.shape for name, tensor in inputs.items()}
        number = choose_profile(self._profiles, shapes)
        if number is None:
            raise no_profile_error(self._name, self._profiles, shapes)
        return number

    def _bind_inputs(self, context: Any, inputs: Mapping[str, DeviceTensor]) -> None:
        for name, tensor in inputs.items():
            self._set_shape(context, name, tensor.shape)
            self._set_address(context, name, tensor.address)

    def _set_shape(self, context: Any, name: str, shape: Shape) -> None:
        if not context.set_input_shape(name, shape):
            raise self._engine.last_call_error(f"failed to set the shape of input '{name}'")

    def _set_address(self, context: Any, name: str, address: int) -> None:
        if not context.set_tensor_address(name, address):
            raise self._engine.last_call_error(f"failed to set the address of '{name}'")

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._stream):
            raise self._engine.last_call_error("failed to execute TensorRT inference")


def _strategy(config: model_config_pb2.ModelConfig) -> str:
    strategy = parameters_of(config).get(_STRATEGY, _STRATEGIES[0])
    if strategy not in _STRATEGIES:
        expected = " or ".join(_STRATEGIES)
        raise InvalidArgument(
            f"unable to load model '{config.name}', '{_STRATEGY}' expected {expected} but got "
            f"'{strategy}'"
        )
    return strategy
