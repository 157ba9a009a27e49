"""Input arrays that are kept from one lone request to the next.

For a small model, making arrays takes a tenth of its instance's time. There are three assumptions.
The model neither writes to its inputs nor keeps them: it declares `leaves_arrays`. The tensors have
the plan's sizes: `gather_members` compares them. Each tensor fills its array.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from nereid.bounded_cache import BoundedCache
from nereid_executor.batch.arrays import stack_inputs

if TYPE_CHECKING:
    from nereid.core.tensors.tensors import Array
    from nereid_executor.batch.arrays import GatheredBatch
    from nereid_executor.batch.request_plan import Plan, Signature

# With larger tensors the cost of making arrays does not matter.
MAX_BYTES: Final = 1 << 16
# Clients may send any number of different heads, so the number of kept arrays is limited.
MAX_KEPT: Final = 64


class _Arrays(NamedTuple):
    inputs: dict[str, Array]
    # The bytes of each array.
    views: list[memoryview]


class KeptArrays:
    """The kept arrays of one model. Only its instance's thread uses them."""

    def __init__(self) -> None:
        self._kept: BoundedCache[Plan, _Arrays] = BoundedCache(MAX_KEPT)

    def stack_inputs(self, signature: Signature, gathered: GatheredBatch) -> dict[str, Array]:
        """Return the model's input arrays by name, as arrays.stack_inputs() does."""
        plan = gathered.first
        assert plan is not None
        if len(gathered.tensors) != 1 or not 0 < plan.fixed_bytes <= MAX_BYTES:
            return stack_inputs(signature, gathered)
        kept = self._kept.get(plan) or self._kept.remember(plan, _make_arrays(signature, plan))
        for view, raw in zip(kept.views, gathered.tensors[0]):  # noqa: B905 - as checked
            view[:] = raw  # type: ignore[assignment]  # of a plan with known sizes
        return kept.inputs


def _make_arrays(signature: Signature, plan: Plan) -> _Arrays:
    batch = (plan.rows,) if signature.batching else ()
    inputs = {
        column.name: np.empty((*batch, *column.shape), column.dtype) for column in plan.columns
    }
    return _Arrays(inputs, [array.reshape(-1).view(np.uint8).data for array in inputs.values()])
