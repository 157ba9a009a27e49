"""The TensorRT backend: engines (model.plan) on GPUs, each instance with a stream of its own.

Inputs go through pinned memory, executions through captured graphs where the configuration asks for
such. All contexts of an instance share scratch memory, since only one executes at a time. Not tried
on a GPU yet.
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
from nereid.services.executor.backends.model_file import model_file
from nereid.services.executor.backends.parameters import parameters_of
from nereid.services.executor.backends.shared_models import SharedByFile
from nereid.services.executor.backends.tensorrt.cuda_graphs import find, graph_specs
from nereid.services.executor.backends.tensorrt.cuda_memory import (
    DeviceMemory,
    Graph,
    Staging,
    Stream,
    capability,
    choose_device,
)
from nereid.services.executor.backends.tensorrt.engine import Allocator, Engine
from nereid.services.executor.backends.tensorrt.optimization_profiles import (
    choose,
    completed,
    largest_batch,
    misfit,
    profiles_wanted,
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
_URGENCY: Final = {_Priority.PRIORITY_MAX: 1, _Priority.PRIORITY_MIN: -1}
_STRATEGY: Final = "execution_context_allocation_strategy"
_STRATEGIES: Final = ("STATIC", "ON_PROFILE_CHANGE")

_engines: SharedByFile[Engine] = SharedByFile()


def uses_gpus() -> bool:
    """It uses nothing else."""
    return True


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """The configuration with what the engine adds, which only a GPU of its kind can read."""
    choose_device(0)
    path = model_file(config, version_path, DEFAULT_FILENAME, capability(0))
    engine = Engine(config, path, {})
    rows = largest_batch({0: engine.profile(0)})
    return ModelDescription((), (), completed(config, engine.description, rows))


def load(spec: InstanceSpec) -> TensorRtModel:
    """Contexts and graphs of the instance's own, on an engine that its GPU's instances share."""
    config = spec.config
    if spec.gpu is None:
        raise InvalidArgument(
            f"unable to load model '{config.name}', TensorRT models run on GPUs only"
        )
    choose_device(spec.gpu)
    path = model_file(config, spec.version_path, DEFAULT_FILENAME, capability(spec.gpu))
    engine = _engines.get(path, str(spec.gpu), lambda: Engine(config, path, spec.settings))
    check_model_file(config, engine.description)
    numbers = profiles_wanted(config, spec.name, engine.profile_count)
    profiles = {number: engine.profile(number) for number in numbers}
    most = largest_batch(profiles)
    if config.max_batch_size > most:
        raise InvalidArgument(
            f"unexpected configuration maximum batch size {config.max_batch_size} for "
            f"'{spec.name}', model maximum is {most}"
        )
    with ExitStack() as resources:
        return TensorRtModel(config, engine, profiles, resources)


class _Place(NamedTuple):
    """Where a tensor lies. staging None: it is copied from where it comes from."""

    dtype: np.dtype[Any]
    device: DeviceMemory
    staging: Staging | None


class _Lane(NamedTuple):
    """A context that is set up: for a profile, or for a graph and its shapes."""

    context: Any
    # Of outputs whose shapes only the execution tells.
    allocators: dict[str, Allocator]
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
        """What is to be closed lies in resources, which a failure closes; else the model has it."""
        self.description = engine.description
        self._name = config.name
        self._batching = config.max_batch_size > 0
        self._engine = engine
        self._profiles = profiles
        optimization = config.optimization
        self._stream = Stream(
            urgency=_URGENCY.get(optimization.priority, 0),
            busy_wait=optimization.cuda.busy_wait_events,
        )
        resources.callback(self._stream.close)
        every = _strategy(config) == "STATIC"
        scratch = DeviceMemory(engine.scratch_bytes(None if every else profiles.keys()))
        resources.callback(scratch.close)
        self._scratch = (scratch.address, scratch.size_bytes)
        contexts = {number: self._context(number) for number in profiles}
        self._places = self._place_all(config, contexts, resources)
        self._lanes = {number: self._lane(context) for number, context in contexts.items()}
        inputs = {tensor.name: tensor.dims or () for tensor in self.description.inputs}
        self._specs = graph_specs(config, inputs)
        self._captured = [self._capture(spec.shapes, resources) for spec in self._specs]
        self._resources = resources.pop_all()

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        shapes: Shapes = {name: array.shape for name, array in inputs.items()}
        place = find(self._specs, shapes, batching=self._batching)
        lane = self._profiled(shapes) if place is None else self._captured[place]
        for name, array in inputs.items():
            self._send(name, array)
        if lane.graph is None:
            self._enqueue(lane)
        else:
            self._stream.launch(lane.graph)
        rows = next(iter(shapes.values()))[0] if self._batching else None
        return self._receive(lane, outputs, rows)

    def close(self) -> None:
        self._stream.wait()
        # Contexts before the memory that they know.
        self._lanes.clear()
        self._captured.clear()
        self._resources.close()
        del self._engine

    # ---- setting up

    def _context(self, profile: int) -> Any:
        return self._engine.context(profile, self._stream.handle, self._scratch)

    def _place_all(
        self,
        config: model_config_pb2.ModelConfig,
        contexts: dict[int, Any],
        resources: ExitStack,
    ) -> dict[str, _Place]:
        """Memory for each tensor, large enough for all profiles' largest shapes."""
        sizes: dict[str, int] = {}
        for number, context in contexts.items():
            most = {name: taken.most for name, taken in self._profiles[number].items()}
            self._set_shapes(context, most)
            for tensor in self.description.inputs:
                size = prod(most[tensor.name]) * NUMPY_TYPE[tensor.datatype].itemsize
                sizes[tensor.name] = max(size, sizes.get(tensor.name, 0))
            for tensor in self.description.outputs:
                size = int(context.get_max_output_size(tensor.name))
                if size < 0:
                    raise self._engine.failure(f"unable to get the size of '{tensor.name}'")
                sizes[tensor.name] = max(size, sizes.get(tensor.name, 0))
        optimization = config.optimization
        places = {}
        for role, tensors in (
            ("input", self.description.inputs),
            ("output", self.description.outputs),
        ):
            pinned = getattr(optimization, f"{role}_pinned_memory").enable
            for tensor in tensors:
                staged = pinned or role == "output"
                places[tensor.name] = _place(
                    tensor, sizes[tensor.name], resources, staged=staged, pinned=pinned
                )
        return places

    def _lane(self, context: Any) -> _Lane:
        """Tell a context where the tensors are."""
        allocators = {}
        for name, place in self._places.items():
            if not context.set_tensor_address(name, place.device.address):
                raise self._engine.failure(f"failed to set the address of '{name}'")
        for tensor in self.description.outputs:
            # With all inputs' shapes set, only data can still decide.
            if VARIABLE in tuple(context.get_tensor_shape(tensor.name)):
                memory = self._places[tensor.name].device
                allocator = allocators[tensor.name] = Allocator(memory.address, memory.size_bytes)
                context.set_output_allocator(tensor.name, allocator)
        return _Lane(context, allocators)

    def _capture(self, shapes: Shapes, resources: ExitStack) -> _Lane:
        """A context that keeps these shapes, and the graph of its execution."""
        number = choose(self._profiles, shapes)
        if number is None:
            raise misfit(self._name, self._profiles, shapes)
        context = self._context(number)
        self._set_shapes(context, shapes)
        lane = self._lane(context)
        if lane.allocators:
            raise InvalidArgument(
                f"unable to load model '{self._name}', CUDA graphs cannot make outputs "
                f"whose shapes depend on data: {', '.join(lane.allocators)}"
            )
        # The first execution with new shapes does what a graph must not hold.
        self._enqueue(lane)
        self._stream.wait()
        graph = self._stream.capture(lambda: self._enqueue(lane))
        resources.callback(graph.close)
        return lane._replace(graph=graph)

    # ---- executing

    def _profiled(self, shapes: Shapes) -> _Lane:
        number = choose(self._profiles, shapes)
        if number is None:
            raise misfit(self._name, self._profiles, shapes)
        lane = self._lanes[number]
        self._set_shapes(lane.context, shapes)
        return lane

    def _set_shapes(self, context: Any, shapes: Shapes) -> None:
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise self._engine.failure(f"failed to set the shape of input '{name}'")

    def _enqueue(self, lane: _Lane) -> None:
        if not lane.context.execute_async_v3(self._stream.handle):
            raise self._engine.failure("failed to execute TensorRT inference")

    def _send(self, name: str, array: Array) -> None:
        place = self._places[name]
        address = array.ctypes.data
        if place.staging is not None:
            place.staging.view(array.shape, array.dtype)[...] = array
            address = place.staging.address
        self._stream.copy_in(place.device.address, address, array.nbytes)

    def _receive(self, lane: _Lane, outputs: Sequence[str], rows: int | None) -> list[Array]:
        """The outputs in host memory, which the next execution overwrites."""
        if lane.allocators:
            self._stream.wait()
        made = []
        for name in outputs:
            place = self._places[name]
            allocator = lane.allocators.get(name)
            shape: Shape = (
                tuple(lane.context.get_tensor_shape(name)) if allocator is None else allocator.shape
            )
            if lane.graph is not None and rows is not None:
                # It may have computed more rows than there are.
                shape = (rows, *shape[1:])
            assert place.staging is not None, "outputs are always staged"
            array = place.staging.view(shape, place.dtype)
            self._stream.copy_out(place.staging.address, place.device.address, array.nbytes)
            made.append(array)
        self._stream.wait()
        return made


def _place(
    tensor: TensorDescription,
    size_bytes: int,
    resources: ExitStack,
    *,
    staged: bool,
    pinned: bool,
) -> _Place:
    device = DeviceMemory(size_bytes)
    resources.callback(device.close)
    staging = None
    if staged:
        staging = Staging(size_bytes, pinned=pinned)
        resources.callback(staging.close)
    return _Place(NUMPY_TYPE[tensor.datatype], device, staging)


def _strategy(config: model_config_pb2.ModelConfig) -> str:
    strategy = parameters_of(config).get(_STRATEGY, _STRATEGIES[0])
    if strategy not in _STRATEGIES:
        expected = " or ".join(_STRATEGIES)
        raise InvalidArgument(
            f"unable to load model '{config.name}', '{_STRATEGY}' expected {expected} but got "
            f"'{strategy}'"
        )
    return strategy
