"""Executions of lone requests whose tensors have fixed places in memory.

Making arrays of a small request's tensors, and having the model's runtime look at them, takes
longer than executing a small model. A request like many before it is copied to where the model
reads its inputs, and responded to from where the model writes its outputs.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nereid.core.errors import NereidError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.backends import BindableModel
    from nereid.core.tensors import Array
    from nereid.services.executor.batch.array_batch import ArrayBatch
    from nereid.services.executor.batch.arrays import GatheredBatch, Piece
    from nereid.services.executor.batch.request_plan import Plan, Signature

# Lone requests with one head that are executed as any others before that.
FEWEST: Final = 16
# Of one request's inputs and outputs; above, arrays cost nothing beside the tensors.
MOST_BYTES: Final = 1 << 16
# Of one model: clients may send any number of heads.
MOST_RUNS: Final = 64


class BoundRun:
    """One plan's: requests with one head, one at a time."""

    __slots__ = ("inputs", "pieces", "run")

    def __init__(
        self, inputs: list[memoryview], pieces: list[Piece], run: Callable[[], None]
    ) -> None:
        """inputs: the arrays' bytes. pieces: of the response, with the outputs' bytes."""
        self.inputs = inputs
        self.pieces = pieces
        self.run = run


class BoundRuns:
    """One model's; used by whoever executes its batches, one at a time."""

    def __init__(self, model: BindableModel, signature: Signature) -> None:
        self._model = model
        self._signature = signature
        # Those that have one, the oldest first.
        self._bound: deque[Plan] = deque()

    def execute(self, gathered: GatheredBatch, batch: ArrayBatch) -> BoundRun | None:
        """Execute a batch of one request; None: that is to be done as for any other batch."""
        plan = gathered.first
        if plan is None or plan.bound is None or len(gathered.outcomes) != 1:
            return None
        bound = plan.bound
        # There are as many as the plan has sizes.
        for index, raw in enumerate(gathered.tensors[0]):
            bound.inputs[index][:] = raw  # type: ignore[assignment]  # of a plan with known sizes
        batch.stacked_ns = perf_counter_ns()
        try:
            bound.run()
        except NereidError:
            # Whatever it is, the ordinary way says it; its outputs may have different shapes.
            plan.bound = None
            return None
        return bound

    def learn(self, gathered: GatheredBatch, outputs: Sequence[Array]) -> None:
        """A batch was executed as any other, with these outputs."""
        plan = gathered.first
        if plan is None or plan.lone_runs >= FEWEST or len(gathered.outcomes) != 1:
            return
        plan.lone_runs += 1
        if plan.lone_runs == FEWEST:
            plan.bound = self._bind(plan, outputs)
            if plan.bound is not None:
                self._bound.append(plan)
                if len(self._bound) > MOST_RUNS:
                    oldest = self._bound.popleft()
                    oldest.bound, oldest.lone_runs = None, 0

    def _bind(self, plan: Plan, outputs: Sequence[Array]) -> BoundRun | None:
        sizes = [size for size in plan.sizes if size]
        layouts = [each for key, each in plan.layouts.items() if key[0] == plan.outputs]
        if (
            len(sizes) < len(plan.sizes)
            # Its outputs have had the same shapes each time.
            or len(layouts) != 1
            or layouts[0].parts is None
            or any(array.dtype.kind in "OSU" or not array.size for array in outputs)
            or sum(sizes) + sum(array.nbytes for array in outputs) > MOST_BYTES
        ):
            return None
        batch = (plan.rows,) if self._signature.batching else ()
        inputs = {each.name: np.empty((*batch, *each.shape), each.dtype) for each in plan.columns}
        places = [np.empty(array.shape, array.dtype) for array in outputs]
        run = self._model.bind_arrays(inputs, dict(zip(plan.output_names, places, strict=True)))
        if run is None:
            return None
        views = [_bytes_of(array) for array in places]
        pieces: list[Any] = []
        for prefix, index in layouts[0].parts:
            pieces += (prefix, views[index])
        return BoundRun([_bytes_of(array) for array in inputs.values()], pieces, run)


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
