"""Keepalive pings: decisions when to ping a silent peer, and when to consider it dead.

The module reads no clock. The owner runs a timer at least `TIMERS` times in each interval and each
timeout, and passes the time.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

# Minimum number of timer runs while a peer's reply is awaited. Each run therefore adds at most
# 1/TIMERS of the timeout to the waiting time, even after a longer gap. During a longer gap this
# process was slow or suspended, and the reply may already be in the socket.
TIMERS: Final = 4


class KeepaliveAction(Enum):
    """Action that the owner of a Keepalive must take now."""

    NONE = auto()
    SEND_PING = auto()
    GIVE_UP = auto()


class Keepalive:
    """Keepalive state of one peer.

    The connection sets `received` to True whenever anything arrives.
    """

    def __init__(self, interval_s: float | None, timeout_s: float, *, when_idle: bool) -> None:
        """Create the state of a peer.

        interval_s: seconds of silence after which the peer is pinged; None means never.
        timeout_s: seconds to wait for the reply to a ping.
        when_idle: whether a peer without calls in flight is pinged as well.
        """
        self.received = False
        self._when_idle = when_idle
        self._quiet_since = 0.0
        # Seconds for which a ping has been without a reply; `None` if no reply is awaited.
        self._waited_s: float | None = None
        self.set_limits(interval_s, timeout_s)

    def set_limits(self, interval_s: float | None, timeout_s: float) -> None:
        """Change the interval and the timeout. They mean the same as in the constructor."""
        self.enabled = interval_s is not None
        self._interval_s = interval_s or 0.0
        self._timeout_s = timeout_s

    def on_timer(self, now: float, gap_s: float, *, in_use: bool) -> KeepaliveAction:
        """Return the action to take at a run of the timer.

        gap_s: seconds since the last run.
        """
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
