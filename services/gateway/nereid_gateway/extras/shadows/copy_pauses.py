"""Pauses without copies after a shadow had no capacity or has failed, as a machine without a clock.

event      effect
busy       a short pause; each further one in a row doubles it
failed     a long pause; each further one doubles it, until a minute has passed without any
responded  the next pause of a busy shadow is the shortest again
"""

# layout: covered

from __future__ import annotations

from typing import Final

from nereid.rpc.net.backoff import Backoff, BackoffOptions

BUSY, PAUSED = "the shadow was busy", "copies pause after a crash or a timeout"
_BUSY: Final = BackoffOptions(first_s=0.001, factor=2.0, largest_s=0.128)
# A copy that hangs keeps its instance from other requests, and a worker that starts takes as much
# processor time as hundreds of requests. Shadows that crash now and then have to pause as well, so
# that no single response ends the doubling.
_FAILED: Final = BackoffOptions(first_s=1.0, factor=2.0, largest_s=60.0)


class CopyPauses:
    """Pauses of one shadow. Times are in seconds, of any clock."""

    def __init__(self) -> None:
        self._busy = Backoff(_BUSY)
        self._failed = Backoff(_FAILED)
        self._busy_until_s = self._failed_until_s = 0.0

    def reason(self, now_s: float) -> str:
        """Return why no copy may be sent now; empty if one may."""
        if now_s < self._failed_until_s:
            return PAUSED
        return BUSY if now_s < self._busy_until_s else ""

    def on_busy(self, now_s: float) -> None:
        """Pause, since the shadow had no capacity for a copy."""
        self._busy_until_s = now_s + self._busy.next_delay_s()

    def on_failed(self, now_s: float) -> None:
        """Pause, since a copy has timed out or crashed the shadow's worker."""
        lasted_s = now_s - self._failed_until_s
        # Copies that were in flight together fail together.
        if lasted_s >= 0:
            self._failed_until_s = now_s + self._failed.next_delay_s(lasted_s)

    def on_responded(self) -> None:
        """Begin with the shortest pause when the shadow is busy again."""
        self._busy.succeeded()
