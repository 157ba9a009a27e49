"""How much of its limits a client has used: a token bucket and a count. Pure: time is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_gateway.core.access.grant import Limits


class Usage:
    """Requests of one client; seconds are of any clock that only goes forward.

    The limits are passed in as well, because they may change while requests are pending.
    """

    __slots__ = ("_refilled_at", "_used", "in_flight")

    def __init__(self) -> None:
        # Of the burst; refilling lowers it. So a new bucket is full, whatever its burst.
        self._used = 0.0
        self._refilled_at = 0.0
        # Requests without a final response.
        self.in_flight = 0

    def wait_s(self, limits: Limits, now: float) -> float:
        """Take a request from the bucket and return 0.0; or the time until there is one."""
        rate = limits.requests_per_second
        if rate is None:
            return 0.0
        used = max(0.0, self._used - (now - self._refilled_at) * rate)
        excess = used + 1.0 - limits.burst
        # A refill up to the next request must suffice for it, whatever the rounding.
        if excess > 1e-9:
            self._used, self._refilled_at = used, now
            return excess / rate
        self._used, self._refilled_at = used + 1.0, now
        return 0.0

    def give_back(self) -> None:
        """A request that was taken from the bucket shall not count."""
        self._used = max(0.0, self._used - 1.0)

    def is_full(self, limits: Limits) -> bool:
        """Whether as many requests are in flight as may be."""
        return limits.concurrency is not None and self.in_flight >= limits.concurrency

    def release(self) -> None:
        """A request that was counted in `in_flight` has ended."""
        self.in_flight -= 1

    def is_idle(self, limits: Limits, now: float) -> bool:
        """Whether a new Usage would be the same."""
        rate = limits.requests_per_second or 0.0
        return not self.in_flight and self._used <= (now - self._refilled_at) * rate
