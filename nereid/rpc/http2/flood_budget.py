"""Flood protection: a budget for frames that are cheap to send but cost us work.

Such frames are pings, settings, resets, tiny pieces and useless window updates. One unit stands for
10 to 20 us of work.
"""

from __future__ import annotations

from typing import Final

from nereid.rpc.http2.frames import Code, Http2ConnectionError

# Units that may be spent at once, and units added per second. Real clients stay far below.
_BURST: Final = 1000.0
_REFILL_PER_S: Final = 500.0
# Updates are charged in lots, so one costs a fraction of a unit.
_UPDATES_PER_LOT: Final = 100
_LOT_COST: Final = 10.0
# One window update is free for this many sent bytes: a client may acknowledge even small messages
# twice.
_BYTES_PER_UPDATE: Final = 16


class FloodBudget:
    """Budget of one connection. The connection is ended when the budget is used up."""

    def __init__(self, *, unlimited: bool = False) -> None:
        self._unlimited = unlimited
        self._left = _BURST

    def spend(self, cost: float = 1.0) -> None:
        """Spend units of the budget; raise Http2ConnectionError if it is used up."""
        if self._unlimited:
            return
        self._left -= cost
        if self._left < 0:
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "too many control frames or resets")

    def refill(self, elapsed_s: float) -> None:
        """Add the units for the time since the last call."""
        self._left = min(_BURST, self._left + _REFILL_PER_S * elapsed_s)


class WindowUpdateBudget:
    """Budget that charges for more window updates than the sent content justifies."""

    __slots__ = ("_budget", "_left", "_paid_bytes")

    def __init__(self, budget: FloodBudget) -> None:
        self._budget = budget
        # Updates left until the next comparison with the sent content.
        self._left = _UPDATES_PER_LOT
        self._paid_bytes = 0

    def spend(self, sent_bytes: int) -> None:
        """Count one update; `sent_bytes` is all content sent on the connection so far."""
        self._left -= 1
        if self._left > 0:
            return
        paid = (sent_bytes - self._paid_bytes) // _BYTES_PER_UPDATE
        self._paid_bytes = sent_bytes
        if paid < _UPDATES_PER_LOT:
            self._budget.spend(_LOT_COST)
            paid = _UPDATES_PER_LOT
        self._left = paid
