"""Keepalive pings: when to ping a silent peer, and when to give it up.

Pure: decides on a timer that its owner runs at least `TIMERS` times in an interval and a timeout.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

# Minimum number of timer runs in the time that a peer has to reply. A longer gap between two runs
# counts as one: this process lagged or was suspended, and the reply may be waiting in its socket.
TIMERS: Final = 4


class KeepaliveAction(Enum):
    """Action that the owner of a Keepalive has to take now."""

    NONE = auto()
    SEND_PING = auto()
    GIVE_UP = auto()


class Keepalive:
    """Signs of life of one peer.

    The connection sets `received` whenever anything arrives.
    """

    def __init__(self, interval_s: float | None, timeout_s: float, *, when_idle: bool) -> None:
        """Create the state of a peer.

        interval_s: silence after which to ping; None means never.
        when_idle: whether to ping even without calls in flight.
        """
        self.received = False
        self._when_idle = when_idle
        self._quiet_since = 0.0
        # Time for which a ping has been without a reply; `None` if no ping waits for one.
        self._waited_s: float | None = None
        self.set_limits(interval_s, timeout_s)

    def set_limits(self, interval_s: float | None, timeout_s: float) -> None:
        """Change the interval and the timeout, with the constructor's meaning."""
        self.enabled = interval_s is not None
        self._interval_s = interval_s or 0.0
        self._timeout_s = timeout_s

    def on_timer(self, now: float, gap_s: float, *, in_use: bool) -> KeepaliveAction:
        """Decide at a timer run; `gap_s` is the time since the last one."""
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
