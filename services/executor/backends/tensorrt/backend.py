"""The TensorRT backend: engines (model.plan) on GPUs, each instance with its own stream.

Inputs are copied through pinned memory, and captured graphs are launched, where the configuration
asks for that. All contexts of an instance share scratch memory, since only one executes at a time.
Not tried on a GPU yet.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.backends import InstanceSpec, ModelDescription
from nereid.core.errors import InvalidArgument
from nereid.core.shapes import VARIABLE
from nereid.core.tensors import NUMPY_TYPE
from nereid.model_config import check_model_file
from nereid.pb import model_config_pb2
from nereid.services.executor.backends.device_io.graph_specs import find_graph, graph_specs
from nereid.services.executor.backends.model_file import find_model_file
from nereid.services.executor.backends.parameters import parameters_of
from nereid.services.executor.backends.shared_models import SharedModels
from nereid.services.executor.backends.tensorrt.cuda_memory import (
    DeviceMemory,
    Graph,
    HostBuffer,
    Stream,
    compute_capability,
    set_device,
)
from nereid.services.executor.backends.tensorrt.engine import Engine, OutputAllocator
from nereid.services.executor.backends.tensorrt.optimization_profiles import (
    choose_profile,
    complete_from_engine,
    instance_profiles,
    largest_batch,
    no_profile_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np

    from nereid.backends import TensorDescription
    from nereid.core.tensors import Array
    from nereid.services.executor.backends.tensorrt.optimization_profiles import (
        Profile,
        Shape,
        Shapes,
    )

DEFAULT_FILENAME: Final = "model.plan"

_Priority = model_config_pb2.ModelOptimizationPolicy
_PRIORITY: Final = {_Priority.PRIORITY_MAX: 1, _Priority.PRIORITY_MIN: -1}
_STRATEGY: Final = "execution_context_allocation_strategy"
_STRATEGIES: Final = ("STATIC", "ON_PROFILE_CHANGE")

_engines: SharedModels[Engine] = SharedModels()


def uses_gpus() -> bool:
    """TensorRT runs on GPUs only."""
    return True


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """The configuration, completed from the engine; that loads only on the GPU it was built for."""
    set_device(0)
    path = find_model_file(config, version_path, DEFAULT_FILENAME, compute_capability(0))
    engine = Engine(config, path, {})
    rows = largest_batch({0: engine.profile(0)})
    return ModelDescription((), (), complete_from_engine(config, engine.description, rows))


def load(spec: InstanceSpec) -> TensorRtModel:
    """New contexts and graphs, on an engine that is shared with the GPU's other instances."""
    config = spec.config
    if spec.gpu is None:
        raise InvalidArgument(
            f"unable to load model '{config.name}', TensorRT models run on GPUs only"
        )
    set_device(spec.gpu)
    path = find_model_file(
        config, spec.version_path, DEFAULT_FILENAME, compute_capability(spec.gpu)
    )
    engine = _engines.get_or_load(path, str(spec.gpu), lambda: Engine(config, path, spec.settings))
    check_model_file(config, engine.description)
    numbers = instance_profiles(config, spec.name, engine.profile_count)
    profiles = {number: engine.profile(number) for number in numbers}
    max_rows = largest_batch(profiles)
    if config.max_batch_size > max_rows:
        raise InvalidArgument(
            f"unexpected configuration maximum batch size {config.max_batch_size} for "
            f"'{spec.name}', model maximum is {max_rows}"
        )
    with ExitStack() as resources:
        return TensorRtModel(config, engine, profiles, resources)


class _TensorMemory(NamedTuple):
    """A tensor's memory. host None: inputs are copied to the device from their own memory."""

    dtype: np.dtype[Any]
    device: DeviceMemory
    host: HostBuffer | None


class _PreparedContext(NamedTuple):
    """A context that is ready to execute: for a profile, or with a graph for certain shapes."""

    context: Any
    # Of outputs whose shapes are known only after the execution.
    allocators: dict[str, OutputAllocator]
    graph: Graph | None = None


class TensorRtModel:
    """An instance's contexts, graphs and memory; used by its thread alone."""

    bytes_as_text = False

    def __init__(
        self,
        config: model_config_pb2.ModelConfig,
        engine: Engine,
        profiles: dict[int, Profile],
        resources: ExitStack,
    ) -> None:
        """resources: collects what to close; the model takes it over at the end of a success."""
        self.description = engine.description
        self._name = config.name
        self._batching = config.max_batch_size > 0
        self._engine = engine
        self._profiles = profiles
        optimization = config.optimization
        self._stream = Stream(
            priority=_PRIORITY.get(optimization.priority, 0),
            busy_wait=optimization.cuda.busy_wait_events,
        )
        resources.callback(self._stream.close)
        every = _strategy(config) == "STATIC"
        scratch = DeviceMemory(engine.scratch_bytes(None if every else profiles.keys()))
        resources.callback(scratch.close)
        self._scratch = (scratch.address, scratch.size_bytes)
        contexts = {number: self._context(number) for number in profiles}
        self._memory = self._allocate_memory(config, contexts, resources)
        self._contexts = {
            number: self._prepare_context(context) for number, context in contexts.items()
        }
        inputs = {tensor.name: tensor.dims or () for tensor in self.description.inputs}
        self._specs = graph_specs(config, inputs)
        self._graphs = [self._capture_graph(spec.shapes, resources) for spec in self._specs]
        self._resources = resources.pop_all()

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        shapes: Shapes = {name: array.shape for name, array in inputs.items()}
        index = find_graph(self._specs, shapes, batching=self._batching)
        prepared = self._context_for(shapes) if index is None else self._graphs[index]
        for name, array in inputs.items():
            self._copy_input(name, array)
        if prepared.graph is None:
            self._enqueue_execution(prepared)
        else:
            self._stream.launch_graph(prepared.graph)
        rows = next(iter(shapes.values()))[0] if self._batching else None
        return self._copy_outputs(prepared, outputs, rows)

    def close(self) -> None:
        self._stream.synchronize()
        # Contexts before the memory that they refer to.
        self._contexts.clear()
        self._graphs.clear()
        self._resources.close()
        del self._engine

    # ---- set-up

    def _context(self, profile: int) -> Any:
        return self._engine.create_context(profile, self._stream.handle, self._scratch)

    def _allocate_memory(
        self,
        config: model_config_pb2.ModelConfig,
        contexts: dict[int, Any],
        resources: ExitStack,
    ) -> dict[str, _TensorMemory]:
        """Memory for each tensor, large enough for all profiles' largest shapes."""
        sizes: dict[str, int] = {}
        for number, context in contexts.items():
            largest = {name: each.max for name, each in self._profiles[number].items()}
            self._set_shapes(context, largest)
            for tensor in self.description.inputs:
                size = prod(largest[tensor.name]) * NUMPY_TYPE[tensor.datatype].itemsize
                sizes[tensor.name] = max(size, sizes.get(tensor.name, 0))
            for tensor in self.description.outputs:
                size = int(context.get_max_output_size(tensor.name))
                if size < 0:
                    raise self._engine.last_call_error(f"unable to get the size of '{tensor.name}'")
                sizes[tensor.name] = max(size, sizes.get(tensor.name, 0))
        optimization = config.optimization
        memory = {}
        for role, tensors in (
            ("input", self.description.inputs),
            ("output", self.description.outputs),
        ):
            pinned = getattr(optimization, f"{role}_pinned_memory").enable
            for tensor in tensors:
                has_host = pinned or role == "output"
                memory[tensor.name] = _allocate_tensor(
                    tensor, sizes[tensor.name], resources, has_host=has_host, pinned=pinned
                )
        return memory

    def _prepare_context(self, context: Any) -> _PreparedContext:
        """Set the tensors' addresses in a context."""
        allocators = {}
        for name, memory in self._memory.items():
            if not context.set_tensor_address(name, memory.device.address):
                raise self._engine.last_call_error(f"failed to set the address of '{name}'")
        for tensor in self.description.outputs:
            # With all inputs' shapes set, a dim that is still variable depends on the data.
            if VARIABLE in tuple(context.get_tensor_shape(tensor.name)):
                device = self._memory[tensor.name].device
                allocator = allocators[tensor.name] = OutputAllocator(
                    device.address, device.size_bytes
                )
                context.set_output_allocator(tensor.name, allocator)
        return _PreparedContext(context, allocators)

    def _capture_graph(self, shapes: Shapes, resources: ExitStack) -> _PreparedContext:
        """A context that keeps these shapes, and the graph of its execution."""
        number = choose_profile(self._profiles, shapes)
        if number is None:
            raise no_profile_error(self._name, self._profiles, shapes)
        context = self._context(number)
        self._set_shapes(context, shapes)
        prepared = self._prepare_context(context)
        if prepared.allocators:
            raise InvalidArgument(
                f"unable to load model '{self._name}', CUDA graphs cannot make outputs "
                f"whose shapes depend on data: {', '.join(prepared.allocators)}"
            )
        # The first execution with new shapes does set-up work that must not be captured.
        self._enqueue_execution(prepared)
        self._stream.synchronize()
        graph = self._stream.capture_graph(lambda: self._enqueue_execution(prepared))
        resources.callback(graph.close)
        return prepared._replace(graph=graph)

    # ---- execution

    def _context_for(self, shapes: Shapes) -> _PreparedContext:
        number = choose_profile(self._profiles, shapes)
        if number is None:
            raise no_profile_error(self._name, self._profiles, shapes)
        prepared = self._contexts[number]
        self._set_shapes(prepared.context, shapes)
        return prepared

    def _set_shapes(self, context: Any, shapes: Shapes) -> None:
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise self._engine.last_call_error(f"failed to set the shape of input '{name}'")

    def _enqueue_execution(self, prepared: _PreparedContext) -> None:
        if not prepared.context.execute_async_v3(self._stream.handle):
            raise self._engine.last_call_error("failed to execute TensorRT inference")

    def _copy_input(self, name: str, array: Array) -> None:
        memory = self._memory[name]
        address = array.ctypes.data
        if memory.host is not None:
            memory.host.view(array.shape, array.dtype)[...] = array
            address = memory.host.address
        self._stream.copy_to_device(memory.device.address, address, array.nbytes)

    def _copy_outputs(
        self, prepared: _PreparedContext, outputs: Sequence[str], rows: int | None
    ) -> list[Array]:
        """The outputs in host memory, which the next execution overwrites."""
        if prepared.allocators:
            self._stream.synchronize()
        arrays = []
        for name in outputs:
            memory = self._memory[name]
            allocator = prepared.allocators.get(name)
            shape: Shape = (
                tuple(prepared.context.get_tensor_shape(name))
                if allocator is None
                else allocator.shape
            )
            if prepared.graph is not None and rows is not None:
                # The graph may have computed more rows than the batch has.
                shape = (rows, *shape[1:])
            assert memory.host is not None, "outputs always have a host buffer"
            array = memory.host.view(shape, memory.dtype)
            self._stream.copy_to_host(memory.host.address, memory.device.address, array.nbytes)
            arrays.append(array)
        self._stream.synchronize()
        return arrays


def _allocate_tensor(
    tensor: TensorDescription,
    size_bytes: int,
    resources: ExitStack,
    *,
    has_host: bool,
    pinned: bool,
) -> _TensorMemory:
    device = DeviceMemory(size_bytes)
    resources.callback(device.close)
    host = None
    if has_host:
        host = HostBuffer(size_bytes, pinned=pinned)
        resources.callback(host.close)
    return _TensorMemory(NUMPY_TYPE[tensor.datatype], device, host)


def _strategy(config: model_config_pb2.ModelConfig) -> str:
    strategy = parameters_of(config).get(_STRATEGY, _STRATEGIES[0])
    if strategy not in _STRATEGIES:
        expected = " or ".join(_STRATEGIES)
        raise InvalidArgument(
            f"unable to load model '{config.name}', '{_STRATEGY}' expected {expected} but got "
            f"'{strategy}'"
        )
    return strategy
