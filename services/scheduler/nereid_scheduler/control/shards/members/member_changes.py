"""When a change of the members is acted on. Pure: changes and the time in; what is due out.

    change                                      this scheduler      due
    any                                         has not started     nothing: it knows no members yet
    a member was lost, or leaves                                    TAKE_OVER at once
    a member was lost, or leaves                stood still         MOVE after start_wait
    a member has joined                                             MOVE after settle
    models belong together otherwise                                REGROUP at once
    members have other models                                       ANNOUNCE

What is to be done after a while is put off by each change like it, and is done with what is to be
done at once. A scheduler that stood still has been replaced by its peers, which did not: it must
not take their models from them before it has seen them again.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.config.recovery import RecoveryTimes
    from nereid_scheduler.control.shards.members.membership import Change


class Due(enum.Enum):
    """What a change asks for; see the module's table."""

    NOTHING = enum.auto()
    ANNOUNCE = enum.auto()
    REGROUP = enum.auto()
    MOVE = enum.auto()
    # As MOVE: what ran for who was lost may be sent again to this scheduler.
    TAKE_OVER = enum.auto()


class MemberChanges:
    """One scheduler's. Times are those of its event loop, in seconds."""

    def __init__(self, times: RecoveryTimes, now_s: float) -> None:
        self._times = times
        self._last_beat_s = now_s
        self._deferring_until_s = now_s
        self._started = False
        # When models are to be moved; None: nothing is put off.
        self.settles_at_s: float | None = None

    @property
    def started(self) -> bool:
        """Whether this scheduler takes part: it knows the members."""
        return self._started

    def start(self) -> None:
        """Changes are acted on from now on."""
        self._started = True

    def stop(self) -> None:
        """Nothing is due any more: the scheduler ends."""
        self._started = False

    def on_change(self, change: Change, now_s: float, regroups: Callable[[], bool]) -> Due:
        """The members, or what they have, have changed. regroups: whether models belong together
        otherwise, by what peers say now; asked only where that decides.
        """
        if not self._started:
            return Due.NOTHING
        if change.left and not self.stood_still(now_s):
            self.settles_at_s = None
            return Due.TAKE_OVER
        if change.joined or change.left:
            times = self._times
            self.settles_at_s = now_s + (times.start_wait_s if change.left else times.settle_s)
            return Due.NOTHING
        if not change.peers:
            return Due.NOTHING
        # What they have may be what was asked for in vain.
        return Due.REGROUP if regroups() else Due.ANNOUNCE

    def on_settled(self) -> Due:
        """The time has come that settles_at_s said."""
        self.settles_at_s = None
        return Due.MOVE

    def on_beat(self, now_s: float) -> float:
        """Its timer has fired; when it is to fire again."""
        if self._is_behind(now_s):
            # The ends of its streams may be reported only after this.
            self._deferring_until_s = now_s + self._times.peer_ping_after_s
        self._last_beat_s = now_s
        return now_s + self._times.peer_ping_after_s

    def stood_still(self, now_s: float) -> bool:
        """Whether this process stood still just now."""
        return self._is_behind(now_s) or now_s < self._deferring_until_s

    def _is_behind(self, now_s: float) -> bool:
        """Whether a loop that is so far behind its timers was stopped, or its host was."""
        return now_s - self._last_beat_s > self._times.peer_ping_reply_s
