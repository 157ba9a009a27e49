"""Delays after which refused clients should retry: the time in which a full queue drains."""

# layout: covered

from __future__ import annotations

from math import ceil
from typing import Final

# Used without a measured rate, for example while the service drains.
DEFAULT_MS: Final = 1000

# An estimate outside these bounds is probably a measurement error.
_MIN_MS: Final = 50
_MAX_MS: Final = 30_000
# Minimum time of a measurement, which lasts from one refusal to another. The queue is full at a
# refusal, so the measured rate is the model's own.
_WINDOW_NS: Final = 250_000_000
# Maximum time: after more, the queue may have been empty between the refusals.
_MAX_WINDOW_NS: Final = 10 * _WINDOW_NS


def spread_ms(retry_after_ms: int, random: float) -> int:
    """Return a random delay, so that clients refused together do not retry together.

    The result is 0.5 to 1.5 times the delay, for `random` in [0, 1). It has five significant bits,
    so that headers with the few possible results can be cached.
    """
    exact_ms = max(1, int(retry_after_ms * (0.5 + random)))
    rounded = max(0, exact_ms.bit_length() - 5)
    return exact_ms >> rounded << rounded


def whole_seconds(retry_after_ms: int) -> int:
    """Return the delay in whole seconds for HTTP's Retry-After, at least 1."""
    return max(1, ceil(retry_after_ms / 1000))


class DrainEstimate:
    """Estimate of the time in which a queue drains. Only refusals update it."""

    __slots__ = ("_completed", "_per_ns", "_since_ns")

    def __init__(self) -> None:
        # Start of the current measurement, and requests completed before it.
        self._since_ns = 0
        self._completed = 0
        # 0.0 before the first measurement.
        self._per_ns = 0.0

    def retry_after_ms(self, pending: int, completed: int, now_ns: int) -> int:
        """Return the milliseconds until `pending` requests are completed. Call this at a refusal.

        `completed` counts all requests completed since the start.
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
