"""Captured graphs of one instance, and which of them is free to execute a batch.

A graph reads and writes the addresses that it was captured with, so that it serves one batch at a
time, from the copy of its inputs to that of its outputs: there is one for each place in the
pipeline. A batch that is smaller than its graph leaves the remaining rows as they are; what they
give is dropped. Used by one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.services.executor.backends.device_io.graph_specs import find_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid.services.executor.backends.device_io.device import DeviceTensor
    from nereid.services.executor.backends.device_io.graph_specs import GraphSpec, Shapes


class CapturedGraph:
    """One graph: its memory, and how to launch it on the compute stream."""

    __slots__ = ("_batching", "index", "inputs", "launch", "outputs")

    def __init__(
        self,
        index: int,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
        launch: Callable[[], None],
        *,
        batching: bool,
    ) -> None:
        """index: of its spec."""
        self.index = index
        self.inputs = inputs
        self.outputs = outputs
        self.launch = launch
        self._batching = batching

    def results(self, names: Sequence[str], rows: int) -> list[DeviceTensor]:
        """Outputs of a batch with so many rows."""
        outputs = [self.outputs[name] for name in names]
        if not self._batching:
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
