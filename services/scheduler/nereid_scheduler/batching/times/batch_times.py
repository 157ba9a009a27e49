"""The measured times of one version's batches.

Each executed batch is recorded here once. Policies read the table, and measure nothing themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_scheduler.batching.times.instance_times import InstanceTimes
from nereid_scheduler.batching.times.moving_mean import MovingMean
from nereid_scheduler.batching.times.row_times import RowTimes
from nereid_scheduler.batching.times.size_costs import SizeCosts
from nereid_scheduler.batching.times.token_costs import TokenCosts

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nereid_scheduler.core.requests.entry import Batch
    from nereid_scheduler.core.requests.execution import Execution

# Maximum number of measured shapes, as clients may send any number of them.
_MAX_SHAPES: Final = 64


class BatchTimes:
    """Times by instance, by shape and number of requests, by number of rows, and by tokens."""

    __slots__ = ("_by_rows", "_execution", "_shapes", "instances", "on_gpu", "rows", "tokens")

    def __init__(self, *, by_rows: bool = False) -> None:
        """by_rows: whether `rows` is recorded, which a latency target needs."""
        self._by_rows = by_rows
        self.rows = RowTimes()
        self.tokens = TokenCosts()
        # True once a batch has run on a GPU.
        self.on_gpu = False
        self._execution = MovingMean()
        self.instances: dict[Hashable, InstanceTimes] = {}
        self._shapes: dict[Hashable, SizeCosts] = {}

    @property
    def execution_ns(self) -> float:
        """Average time that instances report for a batch; 0 before the first execution."""
        return self._execution.value

    def of_instance(self, instance: Hashable) -> InstanceTimes:
        """Return the times of an instance."""
        times = self.instances.get(instance)
        if times is None:
            times = self.instances[instance] = InstanceTimes()
        return times

    def forget_instance(self, instance: Hashable) -> None:
        """Forget the times of an instance that gets no more batches."""
        self.instances.pop(instance, None)

    def of_shape(self, key: Hashable) -> SizeCosts | None:
        """Return the costs of requests with this key; `None` without a measurement."""
        return self._shapes.get(key)

    def record(
        self, instance: Hashable, batch: Batch, execution: Execution, *, waited: bool
    ) -> None:
        """Record an executed batch. waited: the batch waited at the instance behind another one."""
        total_ns = execution.finished_ns - execution.started_ns
        times = self.of_instance(instance)
        compute_ns = execution.compute_ns
        times.record(compute_ns, None if waited else total_ns)
        self._execution.record(compute_ns)
        if execution.gpu_uuid:
            self.on_gpu = True
        if self._by_rows:
            self.rows.record(batch.size, total_ns, execution.finished_ns)
        if batch.tokens:
            # Requests of one key differ in length, so their costs cannot be compared by number.
            self.tokens.record(batch.tokens, compute_ns + times.round_trip_ns)
            return
        shape = shape_of(batch)
        if shape is not None:
            self._record_shape(shape, len(batch.entries), compute_ns + times.round_trip_ns)

    def _record_shape(self, key: Hashable, requests: int, taken_ns: float) -> None:
        costs = self._shapes.get(key)
        if costs is None:
            if len(self._shapes) >= _MAX_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            costs = self._shapes[key] = SizeCosts()
        costs.record(requests, taken_ns)


def shape_of(batch: Batch) -> Hashable | None:
    """Return the shape of a batch's requests; `None` if their costs cannot be compared.

    They can be compared if each request has one row and none has to run alone.
    """
    key = batch.entries[0].key
    alike = key is batch.entries[0].valid.shape_key and batch.size == len(batch.entries)
    return key if alike else None
