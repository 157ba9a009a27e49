"""Flood protection: a budget for frames that are cheap to send, useless, and work for us.

Such frames are pings, settings, resets, empty frames, crumbs of messages, and window updates for
content that was never sent. Pure: time comes in as gaps. One unit is the work of some ten to twenty
microseconds.
"""

from __future__ import annotations

from nereid.rpc.http2.frames import Code, Http2ConnectionError

# Units allowed at once, and units per second after that. Real clients stay far below.
_BURST = 1000.0
_REFILL_PER_S = 500.0
# Window updates are charged in lots, at a fraction of a unit each.
_UPDATES_PER_LOT = 100
_LOT_COST = 10.0
# Sent content pays for the updates that acknowledge it, even for those of a client that
# acknowledges every small message twice.
_BYTES_PER_UPDATE = 16


class FloodBudget:
    """Budget of one connection; exceeding it ends the connection."""

    def __init__(self, *, unlimited: bool = False) -> None:
        self._unlimited = unlimited
        self._left = _BURST

    def spend(self, cost: float = 1.0) -> None:
        """Spend units; raise Http2ConnectionError if the budget is used up."""
        if self._unlimited:
            return
        self._left -= cost
        if self._left < 0:
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "too many control frames or resets")

    def refill(self, elapsed_s: float) -> None:
        """Refill the budget for the time since the last refill."""
        self._left = min(_BURST, self._left + _REFILL_PER_S * elapsed_s)


class WindowUpdateBudget:
    """Budget that charges window updates against the content sent since the last charge."""

    __slots__ = ("_budget", "_left", "_paid_bytes")

    def __init__(self, budget: FloodBudget) -> None:
        self._budget = budget
        # Updates that may come before the sent content is compared again.
        self._left = _UPDATES_PER_LOT
        self._paid_bytes = 0

    def spend(self, sent_bytes: int) -> None:
        """Charge one update; `sent_bytes` is all content sent on the connection so far."""
        self._left -= 1
        if self._left > 0:
            return
        paid = (sent_bytes - self._paid_bytes) // _BYTES_PER_UPDATE
        self._paid_bytes = sent_bytes
        if paid < _UPDATES_PER_LOT:
            self._budget.spend(_LOT_COST)
            paid = _UPDATES_PER_LOT
        self._left = paid
