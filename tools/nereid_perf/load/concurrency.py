"""Schedules of closed loops: how many requests are in flight."""

from __future__ import annotations


def share_of(total: int, worker: int, workers: int) -> int:
    """Return one worker's part of a total, which is divided evenly among workers."""
    return total // workers + (worker < total % workers)


class Constant:
    """A constant number of requests in flight."""

    def __init__(self, in_flight: int) -> None:
        self.allowed = in_flight

    def on_end(self) -> None:
        """Note the end of a request."""


class Periodic:
    """A concurrency that grows by a step after every N requests, up to a maximum."""

    def __init__(self, first: int, last: int, step: int, requests_per_step: int) -> None:
        self.allowed = first
        self._last = last
        self._step = step
        self._requests_per_step = requests_per_step
        self._ended = 0

    def on_end(self) -> None:
        """Note the end of a request, after which the number may grow."""
        self._ended += 1
        if self._ended >= self._requests_per_step and self.allowed < self._last:
            self._ended = 0
            self.allowed = min(self._last, self.allowed + self._step)
