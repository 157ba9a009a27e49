"""Keepalive pings: when to ping a silent peer, and when to give it up.

Pure: decides on a timer that its owner runs at least `TIMERS` times in an interval and a timeout.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

# How many timers there are at least in the time that a peer has to reply. A longer gap between two
# of them counts as one: this process lagged or was suspended, and the reply may be waiting in its
# socket.
TIMERS: Final = 4


class KeepaliveAction(Enum):
    """What the owner of a Keepalive is to do now."""

    NONE = auto()
    SEND_PING = auto()
    GIVE_UP = auto()


class Keepalive:
    """One peer's signs of life. The connection sets `received` whenever anything arrives."""

    def __init__(self, interval_s: float | None, timeout_s: float, *, when_idle: bool) -> None:
        """interval_s: the silence after which to ping; None: never. when_idle: also without calls
        in flight.
        """
        self.received = False
        self._when_idle = when_idle
        self._quiet_since = 0.0
        # For how long a ping has been without a reply; None: there is no ping to reply to.
        self._waited_s: float | None = None
        self.set_limits(interval_s, timeout_s)

    def set_limits(self, interval_s: float | None, timeout_s: float) -> None:
        """As in the constructor."""
        self.enabled = interval_s is not None
        self._interval_s = interval_s or 0.0
        self._timeout_s = timeout_s

    def on_timer(self, now: float, gap_s: float, *, in_use: bool) -> KeepaliveAction:
        """gap_s: since the last timer. in_use: calls are in flight."""
        if not self.enabled:
            return KeepaliveAction.NONE
        if self.received or self._quiet_since == 0.0:
            self.received = False
            self._quiet_since = now
            self._waited_s = None
        elif self._waited_s is not None:
            self._waited_s += min(gap_s, self._timeout_s / TIMERS)
            if self._waited_s >= self._timeout_s:
                return KeepaliveAction.GIVE_UP
        elif now - self._quiet_since >= self._interval_s and (in_use or self._when_idle):
            self._waited_s = 0.0
            return KeepaliveAction.SEND_PING
        return KeepaliveAction.NONE
