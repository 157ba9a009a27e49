"""Requests of a model version that no executor has: who of them has waited long enough.

overdue() is pure: entries in order of arrival and the time, in; who is due and when to look again,
out. Patience has the clock and the timer, and knows nothing of queues.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from nereid.services.scheduler.requests.entry import State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid.services.scheduler.requests.entry import Entry

# Requests that wait for an executor are looked at no more often than this.
_PAUSE_S: Final = 0.02
_now_ns = time.monotonic_ns


class Patience:
    """Has those given up, oldest first, that have waited too long. Made in an event loop."""

    def __init__(
        self, limit_s: float, entries: Collection[Entry], give_up: Callable[[Entry], None]
    ) -> None:
        """entries: all that are open, in order of arrival."""
        self._limit_ns = int(limit_s * 1e9)
        self._entries = entries
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._stranded_since_ns = _now_ns()
        # One for all: many may be waiting.
        self._timer: asyncio.TimerHandle | None = None

    def strand(self) -> None:
        """The last instance is gone: whatever is open has waited since now."""
        self._stranded_since_ns = _now_ns()

    def begin(self) -> None:
        """Something may be waiting while there is no instance."""
        if self._timer is None and self._entries:
            self._look()

    def end(self) -> None:
        """There is an instance, or nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_ns = _now_ns()
        self._timer = None
        due, next_ns = overdue(self._entries, self._stranded_since_ns, self._limit_ns, now_ns)
        if next_ns is not None:
            delay_s = max((next_ns - now_ns) / 1e9, _PAUSE_S)
            self._timer = self._loop.call_later(delay_s, self._look)
        for entry in due:
            self._give_up(entry)


def overdue(
    entries: Iterable[Entry], stranded_since_ns: int, patience_ns: int, now_ns: int
) -> tuple[list[Entry], int | None]:
    """The entries to give up now, and when the next one is due; None: no other waits."""
    due: list[Entry] = []
    for entry in entries:
        if entry.state is State.EXECUTING:  # an executor that leaves still has it
            continue
        limit_ns = max(entry.received_ns, stranded_since_ns) + patience_ns
        if limit_ns > now_ns:
            return due, limit_ns
        due.append(entry)
    return due, None
