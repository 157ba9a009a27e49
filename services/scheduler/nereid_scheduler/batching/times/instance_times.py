"""Times of one instance's batches, and whether a second batch may be sent while one executes."""

from __future__ import annotations

from typing import Final

from nereid_scheduler.batching.times.moving_mean import MovingMean

# If an execution takes more than this many round trips, no batch waits at the instance: it would
# save little time, and would bind its requests to this instance for long.
_MAX_ROUND_TRIPS: Final = 4
# A waiting batch is withdrawn when the batch before it takes this many times as long as expected,
# but not before _MIN_PATIENCE_NS: an event loop is often late by some milliseconds.
_PATIENCE: Final = 4
_MIN_PATIENCE_NS: Final = 10_000_000


class InstanceTimes:
    """Average times of one instance in nanoseconds.

    execution: time that the instance reports for a batch. round_trip: time from dispatch to the
    reply without the execution, during which the instance is idle.
    """

    __slots__ = ("_execution", "_round_trip", "patience_ns")

    def __init__(self) -> None:
        self._execution = MovingMean()
        self._round_trip = MovingMean()
        # A batch that executes for longer than this is overdue: no batch is sent behind it, and a
        # waiting batch is withdrawn.
        self.patience_ns = _MIN_PATIENCE_NS

    @property
    def execution_ns(self) -> float:
        """Average execution time; 0 before the first execution."""
        return self._execution.value

    @property
    def round_trip_ns(self) -> float:
        """Average round trip; 0 before the first measurement."""
        return self._round_trip.value

    def record(self, execution_ns: int, total_ns: int | None) -> None:
        """Record an executed batch.

        total_ns: time from dispatch to the reply; `None` if the batch waited at the instance.
        """
        self._execution.record(execution_ns)
        if total_ns is not None:
            self._round_trip.record(max(0, total_ns - execution_ns))
        expected_ns = self._execution.value + self._round_trip.value
        self.patience_ns = max(int(_PATIENCE * expected_ns), _MIN_PATIENCE_NS)

    def may_send(self, elapsed_ns: int) -> bool:
        """Return whether a batch that is sent now would arrive about when the instance needs it.

        elapsed_ns: time for which the instance has executed its batch.
        """
        execution_ns, round_trip_ns = self._execution.value, self._round_trip.value
        return (
            0 < execution_ns <= _MAX_ROUND_TRIPS * round_trip_ns
            and execution_ns - round_trip_ns <= elapsed_ns <= self.patience_ns
        )
