"""Executions of lone requests, with input arrays that are kept from one request to the next.

For a small model, making arrays of a request's tensors and finding out how outputs are encoded
takes longer than the execution. After many requests with the same head, the next request is copied
into the arrays that its plan keeps, and its outputs are encoded like the outputs of the requests
before.

Assumptions, and the place where each of them is checked:

- The model neither writes to its inputs nor keeps them: it must declare `leaves_arrays`.
- The inputs have the plan's shapes: `gather_members` compares the size of each tensor with the
  plan's.
- Every byte of the inputs is the request's: each tensor fills its array.
- The outputs have the datatypes and shapes of those before: each run compares them, and outputs
  that differ are encoded as for any other batch.

Outputs are the arrays that the model returns. The model is not told to write to kept memory,
because a runtime may write elsewhere: ONNX Runtime does so if an output is one of its inputs.
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

# Number of lone requests with the same head that are first executed like any other request.
FEWEST: Final = 16
# Maximum bytes of a request's inputs and outputs. With larger tensors the cost of making arrays
# does not matter.
MAX_BYTES: Final = 1 << 16
# Maximum number of kept runs of one model, since clients may send any number of different heads.
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
        """Create the run of one plan.

        inputs: the kept arrays, by name. count: number of outputs that the model returns. outputs:
        the outputs in the order of the response. Each has the bytes that precede it, its index
        among the model's outputs, its shape and its datatype.
        """
        self.inputs = inputs
        self._places = [array.reshape(-1).view(np.uint8).data for array in inputs.values()]
        self._count = count
        self._outputs = outputs

    def fill(self, gathered: GatheredBatch) -> None:
        """Copy the tensors of a batch of one request into the kept arrays."""
        # gather_members has checked that there are as many tensors as the plan has sizes.
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
    """The lone runs of one model. Only the thread that executes the model's batches uses them.

    Different threads may execute batches, one at a time.
    """

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
