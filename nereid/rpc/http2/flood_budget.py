"""Flood protection: a budget for what is cheap to send and useless (pings, settings, resets, empty
frames).

Pure: time comes in as gaps.
"""

from __future__ import annotations

from nereid.rpc.http2.frames import Code, Http2ConnectionError

# So many at once, and so many per second from then on. Real clients stay far below.
_BURST = 1000.0
_REFILL_PER_S = 500.0


class FloodBudget:
    """One connection's budget; what exceeds it ends the connection."""

    def __init__(self, *, unlimited: bool = False) -> None:
        self._unlimited = unlimited
        self._left = _BURST

    def spend(self, cost: float = 1.0) -> None:
        """Raises Http2ConnectionError when the budget is used up."""
        if self._unlimited:
            return
        self._left -= cost
        if self._left < 0:
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "too many control frames or resets")

    def refill(self, elapsed_s: float) -> None:
        self._left = min(_BURST, self._left + _REFILL_PER_S * elapsed_s)
