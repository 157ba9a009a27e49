"""Measures how long one instance executes a batch, and how long it is idle between two batches.

From these times it decides whether a second batch may be sent to an instance that is executing. The
module is pure: times are arguments.
"""

from __future__ import annotations

from typing import Final

# The weight of the newest measurement in a moving average.
_WEIGHT: Final = 0.125
# If an execution takes more than this many round trips, no batch waits at the instance. Waiting
# there would save little time, and would bind the batch's requests to this instance for long.
_MAX_ROUND_TRIPS: Final = 4
# A waiting batch is withdrawn when the batch before it takes this many times as long as expected.
# It is not withdrawn before _MIN_PATIENCE_NS, as an event loop is often late by some milliseconds.
_PATIENCE: Final = 4
_MIN_PATIENCE_NS: Final = 10_000_000


class Pace:
    """Moving averages of one instance's batches, in nanoseconds."""

    __slots__ = ("execution_ns", "patience_ns", "round_trip_ns")

    def __init__(self) -> None:
        # Average execution time; 0 until an execution was measured.
        self.execution_ns = 0.0
        # Average time from sending a batch to its response, without the execution. The instance is
        # idle for this long if its next batch is sent after the response.
        self.round_trip_ns = 0.0
        # A batch that executes for longer than this is overdue: no batch is sent behind it, and a
        # waiting batch is withdrawn.
        self.patience_ns = _MIN_PATIENCE_NS

    def record_batch(self, execution_ns: int, total_ns: int | None) -> None:
        """Add the times of an executed batch to the averages.

        total_ns: time from dispatching the batch to its response; `None` if the batch waited at the
        instance.
        """
        if not self.execution_ns:
            self.execution_ns = float(execution_ns)
        else:
            self.execution_ns += _WEIGHT * (execution_ns - self.execution_ns)
        if total_ns is not None:
            round_trip_ns = max(0, total_ns - execution_ns)
            if not self.round_trip_ns:
                self.round_trip_ns = float(round_trip_ns)
            else:
                self.round_trip_ns += _WEIGHT * (round_trip_ns - self.round_trip_ns)
        expected_ns = self.execution_ns + self.round_trip_ns
        self.patience_ns = max(int(_PATIENCE * expected_ns), _MIN_PATIENCE_NS)

    def may_send(self, elapsed_ns: int) -> bool:
        """Return whether a batch that is sent now would arrive about when the instance needs it.

        `elapsed_ns` is the time for which the instance has been executing its current batch.
        """
        execution_ns, round_trip_ns = self.execution_ns, self.round_trip_ns
        return (
            0 < execution_ns <= _MAX_ROUND_TRIPS * round_trip_ns
            and execution_ns - round_trip_ns <= elapsed_ns <= self.patience_ns
        )
