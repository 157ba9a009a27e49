"""Keepalive pings: when to ping a silent peer, and when to give it up.

Pure: decides on a timer that its owner runs at least twice in a keepalive timeout.
"""

from __future__ import annotations

from enum import Enum, auto

# A gap between two timers that is a larger share of the timeout than this means that the process
# was suspended.
_SUSPENDED = 0.75


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
        self.enabled = interval_s is not None
        self._interval_s = interval_s or 0.0
        self._timeout_s = timeout_s
        self._when_idle = when_idle
        self._quiet_since = 0.0
        self._pinged_at: float | None = None

    def on_timer(self, now: float, gap_s: float, *, in_use: bool) -> KeepaliveAction:
        """gap_s: since the last timer. in_use: calls are in flight."""
        if not self.enabled:
            return KeepaliveAction.NONE
        if self.received or self._quiet_since == 0.0:
            self.received = False
            self._quiet_since = now
            self._pinged_at = None
        elif self._pinged_at is not None:
            if gap_s > self._timeout_s * _SUSPENDED:
                # This process stood still: the reply may be waiting in our socket.
                self._pinged_at = now
            if now - self._pinged_at >= self._timeout_s:
                return KeepaliveAction.GIVE_UP
        elif now - self._quiet_since >= self._interval_s and (in_use or self._when_idle):
            self._pinged_at = now
            return KeepaliveAction.SEND_PING
        return KeepaliveAction.NONE
