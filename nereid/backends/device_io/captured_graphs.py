"""Captured graphs of one instance, and the choice of a free graph for a batch.

A graph has fixed addresses, so it serves one batch at a time, and each pipeline slot has its own.
Only one thread may use the objects.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from nereid.backends.device_io.device import DeviceTensor
from nereid.backends.device_io.graph_specs import find_graph
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.tensors import NUMPY_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from nereid.backends import ModelDescription
    from nereid.backends.device_io.device import Device
    from nereid.backends.device_io.graph_specs import GraphSpec, Shapes

# CUDA refuses other threads' allocations during a capture, and then drops the capture. This lock
# only prevents two models of a process from capturing at the same time.
_CAPTURING: Final = threading.Lock()
# Byte that fills the memory of outputs before a graph's first launch.
_UNWRITTEN: Final = 0xE4


class CapturingSession(Protocol):
    """A Session that can also capture graphs of its executions."""

    def run(
        self, inputs: Mapping[str, DeviceTensor], outputs: Sequence[str]
    ) -> Sequence[DeviceTensor]:
        """Enqueue an execution as Session.run() (pipeline.py) does."""

    def capture(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor]
    ) -> Callable[[], None]:
        """Capture a graph that uses this memory; return the function that launches the graph."""


@dataclass(slots=True, eq=False)
class CapturedGraph:
    """One graph, its memory, and the function that launches it on the compute stream."""

    index: int
    inputs: Mapping[str, DeviceTensor]
    outputs: Mapping[str, DeviceTensor]
    launch: Callable[[], None]
    batching: bool

    def results(self, names: Sequence[str], rows: int) -> list[DeviceTensor]:
        """Return the named outputs, cut to the number of rows of the batch."""
        outputs = [self.outputs[name] for name in names]
        if not self.batching:
            return outputs
        return [output._replace(shape=(rows, *output.shape[1:])) for output in outputs]


class CapturedGraphs:
    """All graphs of one instance."""

    def __init__(
        self, specs: Sequence[GraphSpec], graphs: Sequence[CapturedGraph], *, batching: bool
    ) -> None:
        """Create the collection; `graphs` has one graph per spec and batch in flight."""
        self._specs = specs
        self._batching = batching
        self._free: list[list[CapturedGraph]] = [[] for _ in specs]
        for graph in graphs:
            self._free[graph.index].append(graph)

    def acquire(self, shapes: Shapes) -> CapturedGraph | None:
        """Return a free graph for these shapes; `None` if there is none."""
        index = find_graph(self._specs, shapes, batching=self._batching)
        if index is None or not self._free[index]:
            return None
        return self._free[index].pop()

    def release(self, graph: CapturedGraph) -> None:
        """Make a graph free again after its batch has ended."""
        self._free[graph.index].append(graph)


def capture_graphs(  # noqa: PLR0913 (called once)
    session: CapturingSession,
    description: ModelDescription,
    specs: Sequence[GraphSpec],
    device: Device,
    resources: ExitStack,
    *,
    compute: int,
    depth: int,
    batching: bool,
) -> CapturedGraphs:
    """Capture `depth` graphs for each spec. `resources` collects the calls that free their memory.

    Each graph is launched and compared with a plain run first, because a runtime may ignore the
    memory for an output. Raises InvalidArgument if an output has no batch dimension, or if a graph
    does not write it.
    """

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any], fill: int = 0) -> DeviceTensor:
        size_bytes = DeviceTensor(0, shape, dtype).size_bytes
        address = device.allocate_device(max(1, size_bytes))
        resources.callback(device.free_device, address)
        if size_bytes:
            filled = np.full(size_bytes, fill, np.uint8)
            device.copy_to_device(address, filled.ctypes.data, size_bytes, compute)
            device.synchronize_stream(compute)
        return DeviceTensor(address, shape, dtype)

    def content(tensor: DeviceTensor) -> bytes:
        array = np.empty(tensor.size_bytes, np.uint8)
        if tensor.size_bytes:
            device.copy_to_host(array.ctypes.data, tensor.address, tensor.size_bytes, compute)
            device.synchronize_stream(compute)
        return array.tobytes()

    dtypes = {tensor.name: NUMPY_TYPE[tensor.datatype] for tensor in description.inputs}
    names = [tensor.name for tensor in description.outputs]
    graphs = []
    for index, spec in enumerate(specs):
        for _ in range(depth):
            inputs = {name: allocate(shape, dtypes[name]) for name, shape in spec.shapes.items()}
            results = session.run(inputs, names)
            device.synchronize_stream(compute)
            outputs = {
                name: allocate(result.shape, result.dtype, _UNWRITTEN)
                for name, result in zip(names, results, strict=True)
            }
            if batching and any(output.shape[:1] != (spec.rows,) for output in outputs.values()):
                raise InvalidArgument("CUDA graphs need outputs with a batch dimension")
            with _CAPTURING:
                launch = session.capture(inputs, outputs)
                device.synchronize_stream(compute)
            if [*map(content, outputs.values())] != [*map(content, results)]:
                raise InvalidArgument("they give other outputs than a plain run")
            graphs.append(CapturedGraph(index, inputs, outputs, launch, batching=batching))
    return CapturedGraphs(specs, graphs, batching=batching)
