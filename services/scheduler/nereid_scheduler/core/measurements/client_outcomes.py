"""Outcomes of clients' requests to one version, by which a rollout compares versions."""

from __future__ import annotations

from nereid_scheduler.core.measurements.fine_durations import BUCKETS, bucket_of


class ClientOutcomes:
    """Counts since their creation. Copies for a shadow are none of the requests.

    Copies run while a version has nothing else to do, and may fail by a time limit of their own. A
    request that comes meanwhile waits for them, as no request does at a version without a shadow:
    its duration does not count.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        # By fine bucket.
        self.durations = [0] * BUCKETS
        self._copies_ended_ns = 0

    def record_copies(self, ended_ns: int) -> None:
        """Note that copies have ended."""
        self._copies_ended_ns = max(self._copies_ended_ns, ended_ns)

    def record_success(self, received_ns: int, ended_ns: int) -> None:
        """Count a request that has its last response."""
        self.requests += 1
        if received_ns >= self._copies_ended_ns:
            self.durations[bucket_of(ended_ns - received_ns)] += 1

    def record_failure(self) -> None:
        """Count a request that has failed or was refused."""
        self.requests += 1
        self.failures += 1

    def record_error_response(self) -> None:
        """Count a request as failed that has counted as a success."""
        self.failures += 1
