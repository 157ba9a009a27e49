"""Captured graphs of one instance, and which of them is free to execute a batch.

A graph reads and writes the addresses that it was captured with, so that it serves one batch at a
time, from the copy of its inputs to that of its outputs: there is one for each place in the
pipeline. A batch that is smaller than its graph leaves the remaining rows as they are; what they
give is dropped. Used by one thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid_executor.backends.device_io.device import DeviceTensor
from nereid_executor.backends.device_io.graph_specs import find_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from nereid.backends import ModelDescription
    from nereid_executor.backends.device_io.device import Device
    from nereid_executor.backends.device_io.graph_specs import GraphSpec, Shapes

# CUDA refuses what other threads allocate during a capture, and drops the capture: at least no two
# models of a process capture at a time.
_CAPTURING: Final = threading.Lock()
# In outputs' memory before the first launch.
_UNWRITTEN: Final = 0xE4


class CapturingSession(Protocol):
    """Runs the model on tensors of the device, and captures graphs of that."""

    def run(
        self, inputs: Mapping[str, DeviceTensor], outputs: Sequence[str]
    ) -> Sequence[DeviceTensor]:
        """As Session.run (pipeline.py)."""

    def capture(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor]
    ) -> Callable[[], None]:
        """Capture a graph on this memory; what launches it."""


@dataclass(slots=True, eq=False)
class CapturedGraph:
    """One graph: its memory, and how to launch it on the compute stream."""

    # Of its spec.
    index: int
    inputs: Mapping[str, DeviceTensor]
    outputs: Mapping[str, DeviceTensor]
    launch: Callable[[], None]
    batching: bool

    def results(self, names: Sequence[str], rows: int) -> list[DeviceTensor]:
        """Outputs of a batch with so many rows."""
        outputs = [self.outputs[name] for name in names]
        if not self.batching:
            return outputs
        return [each._replace(shape=(rows, *each.shape[1:])) for each in outputs]


class CapturedGraphs:
    """Those of one instance."""

    def __init__(
        self, specs: Sequence[GraphSpec], graphs: Sequence[CapturedGraph], *, batching: bool
    ) -> None:
        """graphs: as many of each spec as there are batches in flight."""
        self._specs = specs
        self._batching = batching
        self._free: list[list[CapturedGraph]] = [[] for _ in specs]
        for graph in graphs:
            self._free[graph.index].append(graph)

    def acquire(self, shapes: Shapes) -> CapturedGraph | None:
        """A graph for these shapes; None: there is none, or it is in use."""
        index = find_graph(self._specs, shapes, batching=self._batching)
        if index is None or not self._free[index]:
            return None
        return self._free[index].pop()

    def release(self, graph: CapturedGraph) -> None:
        """Its batch has ended."""
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
    """Graphs for these shapes, each `depth` times. resources: gets what frees their memory.

    Each is launched beside a plain run before it is trusted: a runtime may leave memory alone that
    is given for an output, such as one that is an input.

    Raises:
        InvalidArgument: an output has no batch dimension, or a graph does not give it.
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

    dtypes = {each.name: NUMPY_TYPE[each.datatype] for each in description.inputs}
    names = [each.name for each in description.outputs]
    graphs = []
    for index, spec in enumerate(specs):
        for _ in range(depth):
            inputs = {name: allocate(shape, dtypes[name]) for name, shape in spec.shapes.items()}
            found = session.run(inputs, names)
            device.synchronize_stream(compute)
            outputs = {
                name: allocate(each.shape, each.dtype, _UNWRITTEN)
                for name, each in zip(names, found, strict=True)
            }
            if batching and any(each.shape[:1] != (spec.rows,) for each in outputs.values()):
                raise InvalidArgument("CUDA graphs need outputs with a batch dimension")
            with _CAPTURING:
                launch = session.capture(inputs, outputs)
                device.synchronize_stream(compute)
            if [*map(content, outputs.values())] != [*map(content, found)]:
                raise InvalidArgument("they give other outputs than a plain run")
            graphs.append(CapturedGraph(index, inputs, outputs, launch, batching=batching))
    return CapturedGraphs(specs, graphs, batching=batching)
