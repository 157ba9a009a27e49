"""Keepalive pings: when to ping a silent peer, and when to consider it dead.

The owner runs a timer at least `TIMERS` times in each interval and timeout.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

# Minimum number of timer runs while a reply is awaited. Each run adds at most 1/TIMERS of the
# timeout to the waiting time: after a longer gap, the reply may already be in the socket.
TIMERS: Final = 4


class KeepaliveAction(Enum):
    """Action that the owner of a Keepalive must take."""

    NONE = auto()
    SEND_PING = auto()
    GIVE_UP = auto()


class Keepalive:
    """Keepalive state of a peer. The connection sets `received` whenever anything arrives."""

    def __init__(self, interval_s: float | None, timeout_s: float, *, when_idle: bool) -> None:
        """Create the state. An interval of None sends no pings; when_idle pings unused peers."""
        self.received = False
        self._when_idle = when_idle
        self._quiet_since = 0.0
        # `None` if no reply is awaited.
        self._waited_s: float | None = None
        self.set_limits(interval_s, timeout_s)

    def set_limits(self, interval_s: float | None, timeout_s: float) -> None:
        """Change the interval and the timeout."""
        self.enabled = interval_s is not None
        self._interval_s = interval_s or 0.0
        self._timeout_s = timeout_s

    def on_timer(self, now: float, gap_s: float, *, in_use: bool) -> KeepaliveAction:
        """Return the action at a run of the timer, `gap_s` after the last run."""
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
