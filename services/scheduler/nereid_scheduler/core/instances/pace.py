"""Measures an instance's executions and idle times, to decide whether a second batch may wait."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 0.125
# If executions take more round trips, waiting saves little and binds requests for long.
_MAX_ROUND_TRIPS: Final = 4
# A waiting batch is withdrawn when the batch before it takes this many times the expected time, but
# not before _MIN_PATIENCE_NS, as an event loop is often late by milliseconds.
_PATIENCE: Final = 4
_MIN_PATIENCE_NS: Final = 10_000_000


class Pace:
    """Moving averages of one instance's batches, in nanoseconds."""

    __slots__ = ("execution_ns", "patience_ns", "round_trip_ns")

    def __init__(self) -> None:
        self.execution_ns = 0.0
        # Time from sending a batch to its response, less the execution.
        self.round_trip_ns = 0.0
        # A longer batch is overdue: no batch is sent behind it, and a waiting one is withdrawn.
        self.patience_ns = _MIN_PATIENCE_NS

    def record_batch(self, execution_ns: int, total_ns: int | None) -> None:
        """Add a batch's times; total_ns: from dispatch to response, `None` if the batch waited."""
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
        """Return whether a batch sent now arrives about when the instance needs it."""
        execution_ns, round_trip_ns = self.execution_ns, self.round_trip_ns
        return (
            0 < execution_ns <= _MAX_ROUND_TRIPS * round_trip_ns
            and execution_ns - round_trip_ns <= elapsed_ns <= self.patience_ns
        )
