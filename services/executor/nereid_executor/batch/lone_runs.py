"""Executions of lone requests, with input arrays that are kept from one request to the next.

For a small model, making arrays takes longer than the execution. There are four assumptions. The
model neither writes to its inputs nor keeps them: it declares `leaves_arrays`. The tensors have the
plan's sizes: `gather_members` compares them. Each tensor fills its array. The outputs have the same
form as before: each run compares them. The model is not told to write to kept memory, because ONNX
Runtime writes elsewhere if an output is also an input.
"""

# layout: compiled

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.tensors.tensors import Array
    from nereid_executor.batch.arrays import GatheredBatch, Piece
    from nereid_executor.batch.request_plan import Plan, Signature

# The first requests with the same head are executed like any other request.
FEWEST: Final = 16
# With larger tensors the cost of making arrays does not matter.
MAX_BYTES: Final = 1 << 16
# Clients may send any number of different heads, so the number of runs is limited.
MAX_RUNS: Final = 64


class LoneRun:
    """The kept arrays of one plan, for requests with the plan's head, one at a time."""

    __slots__ = ("_count", "_outputs", "_places", "inputs")

    def __init__(
        self,
        inputs: dict[str, Array],
        count: int,
        outputs: list[tuple[bytes, int, tuple[int, ...], np.dtype[np.generic]]],
    ) -> None:
        """count: number of outputs that the model returns.

        outputs: in the order of the response: the bytes before, the index in the model, shape,
        datatype.
        """
        self.inputs = inputs
        self._places = [array.reshape(-1).view(np.uint8).data for array in inputs.values()]
        self._count = count
        self._outputs = outputs

    def fill(self, gathered: GatheredBatch) -> None:
        """Copy the tensors of a batch of one request into the kept arrays."""
        for place, raw in zip(self._places, gathered.tensors[0]):  # noqa: B905 - as checked
            place[:] = raw  # type: ignore[assignment]  # of a plan with known sizes

    def pieces_of(self, arrays: Sequence[Array]) -> list[Piece] | None:
        """Return the response with these outputs; `None` if shapes or datatypes have changed."""
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
    """The lone runs of one model. Only the thread that executes a batch of the model uses them."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        # Plans that have a lone run, oldest first.
        self._plans: deque[Plan] = deque()

    def learn(self, gathered: GatheredBatch, outputs: Sequence[Array]) -> None:
        """Count a batch that was executed like any other; after enough of them, keep arrays."""
        plan = gathered.first
        if plan is None or plan.lone_requests >= FEWEST or len(gathered.outcomes) != 1:
            return
        plan.lone_requests += 1
        if plan.lone_requests == FEWEST:
            plan.lone_run = self._make_run(plan, outputs)
            if plan.lone_run is not None:
                self._plans.append(plan)
                if len(self._plans) > MAX_RUNS:
                    oldest = self._plans.popleft()
                    oldest.lone_run, oldest.lone_requests = None, 0

    def _make_run(self, plan: Plan, outputs: Sequence[Array]) -> LoneRun | None:
        sizes = [size for size in plan.sizes if size]
        layouts = [each for key, each in plan.layouts.items() if key[0] == plan.outputs]
        if (
            len(sizes) < len(plan.sizes)
            # The outputs must have had the same shapes every time.
            or len(layouts) != 1
            or layouts[0].parts is None
            or any(array.dtype.kind in "OSU" for array in outputs)
            or sum(sizes) + sum(array.nbytes for array in outputs) > MAX_BYTES
        ):
            return None
        batch = (plan.rows,) if self._signature.batching else ()
        inputs = {
            column.name: np.empty((*batch, *column.shape), column.dtype) for column in plan.columns
        }
        return LoneRun(
            inputs,
            len(outputs),
            [
                (prefix, index, outputs[index].shape, outputs[index].dtype)
                for prefix, index in layouts[0].parts
            ],
        )
