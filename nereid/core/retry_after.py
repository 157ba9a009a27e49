"""Delays after which refused clients should retry: the time that a full queue takes to drain.

The module reads no clock and draws no random numbers: callers pass both.
"""

# layout: covered

from __future__ import annotations

from math import ceil
from typing import Final

# Delay for refusals that no measured rate applies to, for example: the service drains or has lost
# its connection, or no rate has been measured yet.
DEFAULT_MS: Final = 1000

# Bounds of an estimate. A value outside them is more likely a measurement error.
_MIN_MS: Final = 50
_MAX_MS: Final = 30_000
# Minimum time over which a rate is measured. A measurement begins and ends with a refusal. The
# queue is full at a refusal, so the measured rate is the model's own rate.
_WINDOW_NS: Final = 250_000_000
# Maximum time over which a rate is measured. If the two refusals are further apart, the queue may
# have been empty between them.
_MAX_WINDOW_NS: Final = 10 * _WINDOW_NS


def spread_ms(retry_after_ms: int, random: float) -> int:
    """Return a random delay near this one, so that clients refused together do not retry together.

    The result is between 0.5 and 1.5 times the delay. random: a random number in [0, 1).

    Only the five highest binary digits of the result can be non-zero, so there are few different
    results and headers that contain them can be cached.
    """
    exact_ms = max(1, int(retry_after_ms * (0.5 + random)))
    rounded = max(0, exact_ms.bit_length() - 5)
    return exact_ms >> rounded << rounded


def whole_seconds(retry_after_ms: int) -> int:
    """Return the delay in whole seconds, the unit of HTTP's Retry-After; at least 1."""
    return max(1, ceil(retry_after_ms / 1000))


class DrainEstimate:
    """Estimate of the time in which a queue drains.

    The estimate is updated only when a request is refused, so accepted requests cost nothing.
    """

    __slots__ = ("_completed", "_per_ns", "_since_ns")

    def __init__(self) -> None:
        # Start of the current measurement, and the number of requests that were completed before
        # that.
        self._since_ns = 0
        self._completed = 0
        # Completed requests per nanosecond; 0.0 before the first measurement.
        self._per_ns = 0.0

    def retry_after_ms(self, pending: int, completed: int, now_ns: int) -> int:
        """Return the milliseconds until `pending` requests are completed. Call this at a refusal.

        completed: number of requests completed since the start.
        """
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= _WINDOW_NS:
            if elapsed_ns <= _MAX_WINDOW_NS:
                self._per_ns = max(0, completed - self._completed) / elapsed_ns
            self._since_ns, self._completed = now_ns, completed
        if not self._per_ns:
            return DEFAULT_MS
        drain_ms = pending / self._per_ns / 1e6
        return round(min(max(drain_ms, _MIN_MS), _MAX_MS))
