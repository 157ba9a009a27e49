"""Executions of lone requests whose input arrays are kept.

Making arrays of a small request's tensors, and finding out how its outputs are encoded, takes
longer than executing a small model. A request like many before it is copied to the arrays that its
plan keeps, and its outputs are encoded as those before.

What this assumes, and where it is checked:

- The model neither writes to its inputs nor keeps them: only a model with `leaves_arrays` has this.
- The inputs have the plan's shapes: `gather_members` compares each tensor's size with the plan's.
- Every byte of the inputs is the request's: each tensor fills its array.
- The outputs have the datatypes and shapes of those before: compared at each run, and what differs
  is encoded as for any other batch.

Outputs are the arrays that the model returns. They are not bound to memory of ours: a runtime need
not write what it is told to, as ONNX Runtime does with an output that is one of its inputs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.tensors.tensors import Array
    from nereid_executor.batch.arrays import GatheredBatch, Piece
    from nereid_executor.batch.request_plan import Plan, Signature

# Lone requests with one head that are executed as any others before that.
FEWEST: Final = 16
# Of one request's inputs and outputs; above, arrays cost nothing beside the tensors.
MOST_BYTES: Final = 1 << 16
# Of one model: clients may send any number of heads.
MOST_RUNS: Final = 64


class LoneRun:
    """One plan's: requests with one head, one at a time."""

    __slots__ = ("_count", "_outputs", "_places", "inputs")

    def __init__(
        self,
        inputs: dict[str, Array],
        count: int,
        outputs: list[tuple[bytes, int, tuple[int, ...], np.dtype[np.generic]]],
    ) -> None:
        """count: how many outputs the model returns. outputs: in the response's order: what is
        before its bytes, its place among the model's outputs, its shape and datatype.
        """
        self.inputs = inputs
        self._places = [array.reshape(-1).view(np.uint8).data for array in inputs.values()]
        self._count = count
        self._outputs = outputs

    def fill(self, gathered: GatheredBatch) -> None:
        """Copy the tensors of a batch of one request."""
        # There are as many as the plan has sizes.
        for place, raw in zip(self._places, gathered.tensors[0]):  # noqa: B905 - just said
            place[:] = raw  # type: ignore[assignment]  # of a plan with known sizes

    def pieces_of(self, arrays: Sequence[Array]) -> list[Piece] | None:
        """The response with these outputs; None: they are not like those before."""
        if len(arrays) != self._count:
            return None
        pieces: list[Piece] = []
        for prefix, index, shape, dtype in self._outputs:
            array = arrays[index]
            if array.shape != shape or array.dtype != dtype:
                return None
            pieces.append(prefix)
            pieces.append(array.tobytes())
        return pieces


class LoneRuns:
    """One model's; used by whoever executes its batches, one at a time."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        # The plans that have one, the oldest first.
        self._plans: deque[Plan] = deque()

    def learn(self, gathered: GatheredBatch, outputs: Sequence[Array]) -> None:
        """A batch was executed as any other, with these outputs."""
        plan = gathered.first
        if plan is None or plan.lone_requests >= FEWEST or len(gathered.outcomes) != 1:
            return
        plan.lone_requests += 1
        if plan.lone_requests == FEWEST:
            plan.lone_run = self._make_run(plan, outputs)
            if plan.lone_run is not None:
                self._plans.append(plan)
                if len(self._plans) > MOST_RUNS:
                    oldest = self._plans.popleft()
                    oldest.lone_run, oldest.lone_requests = None, 0

    def _make_run(self, plan: Plan, outputs: Sequence[Array]) -> LoneRun | None:
        sizes = [size for size in plan.sizes if size]
        layouts = [each for key, each in plan.layouts.items() if key[0] == plan.outputs]
        if (
            len(sizes) < len(plan.sizes)
            # Its outputs have had the same shapes each time.
            or len(layouts) != 1
            or layouts[0].parts is None
            or any(array.dtype.kind in "OSU" for array in outputs)
            or sum(sizes) + sum(array.nbytes for array in outputs) > MOST_BYTES
        ):
            return None
        batch = (plan.rows,) if self._signature.batching else ()
        inputs = {each.name: np.empty((*batch, *each.shape), each.dtype) for each in plan.columns}
        return LoneRun(
            inputs,
            len(outputs),
            [
                (prefix, index, outputs[index].shape, outputs[index].dtype)
                for prefix, index in layouts[0].parts
            ],
        )
