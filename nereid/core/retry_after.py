"""When a refused client is to come back: how long a full queue takes to drain.

Pure: the time and the random numbers are arguments.
"""

from __future__ import annotations

from math import ceil
from typing import Final

# After a drain, a reconnect, or a refusal before anything has been measured.
DEFAULT_MS: Final = 1000

# An estimate beyond these says more about the measurement than about the queue.
_SHORTEST_MS: Final = 50
_LONGEST_MS: Final = 30_000
# A rate is measured over this long, and between refusals: while there are any, the queue is full
# and the rate that of the model.
_WINDOW_NS: Final = 250_000_000
# Between refusals further apart the queue may have been empty.
_LONGEST_WINDOW_NS: Final = 10 * _WINDOW_NS


def spread_ms(retry_after_ms: int, random: float) -> int:
    """A delay in place of this one, so that clients refused at once do not return at once: between
    half of it and one and a half. random: in [0, 1).

    Of the result five binary digits differ from zero: headers with it can be remembered.
    """
    exact_ms = max(1, int(retry_after_ms * (0.5 + random)))
    rounded = max(0, exact_ms.bit_length() - 5)
    return exact_ms >> rounded << rounded


def whole_seconds(retry_after_ms: int) -> int:
    """The delay in the unit of HTTP's Retry-After; at least 1."""
    return max(1, ceil(retry_after_ms / 1000))


class DrainEstimate:
    """How long a queue takes to drain. Costs nothing but where a request is refused."""

    __slots__ = ("_completed", "_per_ns", "_since_ns")

    def __init__(self) -> None:
        # The beginning of the present window, and what had been completed then.
        self._since_ns = 0
        self._completed = 0
        # 0.0: not measured.
        self._per_ns = 0.0

    def retry_after_ms(self, pending: int, completed: int, now_ns: int) -> int:
        """The time until so many pending requests are completed, as of a refusal.

        completed: how many have been, ever.
        """
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= _WINDOW_NS:
            if elapsed_ns <= _LONGEST_WINDOW_NS:
                self._per_ns = max(0, completed - self._completed) / elapsed_ns
            self._since_ns, self._completed = now_ns, completed
        if not self._per_ns:
            return DEFAULT_MS
        drain_ms = pending / self._per_ns / 1e6
        return round(min(max(drain_ms, _SHORTEST_MS), _LONGEST_MS))
