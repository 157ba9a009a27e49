"""Usage of a client's limits: a token bucket, and the number of requests in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_gateway.core.access.grant import Limits


class Usage:
    """Requests of one client. Limits are passed in, because they may change meanwhile."""

    __slots__ = ("_refilled_at", "_used", "in_flight")

    def __init__(self) -> None:
        # Used part of the burst, in requests, which decreases with time. 0 makes the full burst
        # available, whatever the limit is.
        self._used = 0.0
        self._refilled_at = 0.0
        self.in_flight = 0

    def wait_s(self, limits: Limits, now: float) -> float:
        """Take one request from the bucket. Return 0.0, or the seconds to wait if it is empty."""
        rate = limits.requests_per_second
        if rate is None:
            return 0.0
        used = max(0.0, self._used - (now - self._refilled_at) * rate)
        excess = used + 1.0 - limits.burst
        # The tolerance covers rounding errors. After the returned time, the bucket must have a
        # request.
        if excess > 1e-9:
            self._used, self._refilled_at = used, now
            return excess / rate
        self._used, self._refilled_at = used + 1.0, now
        return 0.0

    def give_back(self) -> None:
        """Put a request back into the bucket, because it must not count."""
        self._used = max(0.0, self._used - 1.0)

    def is_full(self, limits: Limits) -> bool:
        """Return whether the concurrency limit is reached."""
        return limits.concurrency is not None and self.in_flight >= limits.concurrency

    def release(self) -> None:
        """Stop counting a request as in flight, because it has ended."""
        self.in_flight -= 1

    def is_idle(self, limits: Limits, now: float) -> bool:
        """Return whether this object behaves like a new `Usage`, so that it can be dropped."""
        rate = limits.requests_per_second or 0.0
        return not self.in_flight and self._used <= (now - self._refilled_at) * rate
