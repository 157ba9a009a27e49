"""Durations of one step's requests, as its ensemble sees them."""

from __future__ import annotations

from nereid_scheduler.core.measurements.latency_histograms import LatencyHistograms


class StepTimes:
    """Durations of the requests of one step, with their waits in the queue of the step's model."""

    def __init__(self) -> None:
        self.histograms = LatencyHistograms()
        # Count and sum of the successful requests since the load.
        self.count = 0
        self.ns = 0
        # Requests whose conditions skipped the step.
        self.skipped = 0

    def record(self, received_ns: int, ended_ns: int, *, failed: bool) -> None:
        """Record a request that has had its last response."""
        if failed:
            self.histograms.record_failure(ended_ns)
            return
        self.histograms.record_request(ended_ns - received_ns, ended_ns)
        self.count += 1
        self.ns += ended_ns - received_ns
