"""State machine that decides when a change of the mesh's members is acted on.

    state of this scheduler   event                                   due
    not started               any: it knows no members yet            nothing
    started                   a member was lost, or is leaving        TAKE_OVER at once
    started, stood still      a member was lost, or is leaving        GIVE_UP at once, then MOVE
                                                                      after `start_wait_s`
    started                   a peer has replaced this scheduler      GIVE_UP at once, then MOVE
                                                                      after `settle_s`
    started                   a member has joined                     MOVE after `settle_s`
    started                   models are grouped differently          REGROUP at once
    started                   members have other models               ANNOUNCE

Each further event that asks for a MOVE delays a waiting MOVE again. A TAKE_OVER includes a waiting
MOVE. If a scheduler stood still (its process or its host was stopped), its peers have taken over
its models meanwhile. It must not take the peers' models before it has seen the peers again, nor
serve its own as they were before: clients may have loaded and unloaded them at the peers.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.config.recovery import RecoveryTimes
    from nereid_scheduler.control.shards.members.membership import Change


class Due(enum.Enum):
    """Action that a change asks for, by the table of this module."""

    NOTHING = enum.auto()
    ANNOUNCE = enum.auto()
    REGROUP = enum.auto()
    # Serve no model until the next MOVE or TAKE_OVER: peers have served this scheduler's models.
    GIVE_UP = enum.auto()
    MOVE = enum.auto()
    # As MOVE. Requests that ran at the lost member may also be sent again to this scheduler.
    TAKE_OVER = enum.auto()


class MemberChanges:
    """Decides for one scheduler. Times are those of the scheduler's event loop, in seconds."""

    def __init__(self, times: RecoveryTimes, now_s: float) -> None:
        self._times = times
        self._last_beat_s = now_s
        self._deferring_until_s = now_s
        self._started = False
        self.move_due_at_s: float | None = None

    @property
    def started(self) -> bool:
        """True if this scheduler takes part, which means that it knows the members."""
        return self._started

    def start(self) -> None:
        """Act on changes from now on."""
        self._started = True

    def stop(self) -> None:
        """Act on no further changes, since the scheduler ends."""
        self._started = False

    def on_change(self, change: Change, now_s: float, regroups: Callable[[], bool]) -> Due:
        """Return what is due now, after a change; set `move_due_at_s` if something is due later."""
        if not self._started:
            return Due.NOTHING
        stood_still = bool(change.left) and self.stood_still(now_s)
        if change.left and not stood_still:
            self.move_due_at_s = None
            return Due.TAKE_OVER
        if change.joined or change.replaced or stood_still:
            times = self._times
            self.move_due_at_s = now_s + (times.start_wait_s if stood_still else times.settle_s)
            return Due.GIVE_UP if change.replaced or stood_still else Due.NOTHING
        if not change.peers:
            return Due.NOTHING
        # Announce even if the groups are the same: this scheduler may have looked in vain for one
        # of the peers' models.
        return Due.REGROUP if regroups() else Due.ANNOUNCE

    def on_settled(self) -> Due:
        """Return what is due now that the time `move_due_at_s` has come."""
        self.move_due_at_s = None
        return Due.MOVE

    def on_beat(self, now_s: float) -> float:
        """Record that the beat's timer has fired; return the time at which it must fire again."""
        if self._is_behind(now_s):
            # This process stood still. The loop may report the ends of peers' streams after this
            # timer.
            self._deferring_until_s = now_s + self._times.peer_ping_after_s
        self._last_beat_s = now_s
        return now_s + self._times.peer_ping_after_s

    def stood_still(self, now_s: float) -> bool:
        """Return whether this process stood still just now."""
        return self._is_behind(now_s) or now_s < self._deferring_until_s

    def _is_behind(self, now_s: float) -> bool:
        """Return whether the loop is so far behind its timers that it must have been stopped."""
        return now_s - self._last_beat_s > self._times.peer_ping_reply_s
