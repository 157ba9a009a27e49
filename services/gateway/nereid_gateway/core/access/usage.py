"""Usage of a client's limits: a token bucket and a count. Pure: the time is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_gateway.core.access.grant import Limits


class Usage:
    """Requests of one client; times are in seconds of any monotonic clock.

    The limits are passed in as well, because they may change while requests are pending.
    """

    __slots__ = ("_refilled_at", "_used", "in_flight")

    def __init__(self) -> None:
        # Used part of the burst, which refilling lowers. A new bucket is so full for any burst.
        self._used = 0.0
        self._refilled_at = 0.0
        # Requests without a final response.
        self.in_flight = 0

    def wait_s(self, limits: Limits, now: float) -> float:
        """Take a request from the bucket and return 0.0, or return the time until it has one."""
        rate = limits.requests_per_second
        if rate is None:
            return 0.0
        used = max(0.0, self._used - (now - self._refilled_at) * rate)
        excess = used + 1.0 - limits.burst
        # The tolerance is for rounding: after the returned wait, the bucket must have a request.
        if excess > 1e-9:
            self._used, self._refilled_at = used, now
            return excess / rate
        self._used, self._refilled_at = used + 1.0, now
        return 0.0

    def give_back(self) -> None:
        """Return a request to the bucket, because it shall not count."""
        self._used = max(0.0, self._used - 1.0)

    def is_full(self, limits: Limits) -> bool:
        """Return whether the concurrency limit is reached."""
        return limits.concurrency is not None and self.in_flight >= limits.concurrency

    def release(self) -> None:
        """Uncount a request of `in_flight`, which has ended."""
        self.in_flight -= 1

    def is_idle(self, limits: Limits, now: float) -> bool:
        """Return whether a new `Usage` would behave the same, so that this one can be dropped."""
        rate = limits.requests_per_second or 0.0
        return not self.in_flight and self._used <= (now - self._refilled_at) * rate
