"""Entries of a model version that wait while no executor has it: which have waited too long.

overdue() is pure: entries in order of arrival and the time in; the entries to fail and the time to
look again out. ExecutorWait has the clock and the timer, and knows nothing of queues.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from nereid_scheduler.core.requests.entry import RequestState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid_scheduler.core.requests.entry import Entry

# Bounds how often the waiting entries are scanned.
_MIN_INTERVAL_S: Final = 0.02
_now_ns = time.monotonic_ns


class ExecutorWait:
    """Fails entries, oldest first, that have waited too long. Create it inside the event loop."""

    def __init__(
        self, limit_s: float, entries: Collection[Entry], fail_entry: Callable[[Entry], None]
    ) -> None:
        """entries: all open ones, in order of arrival."""
        self._limit_ns = int(limit_s * 1e9)
        self._entries = entries
        self._fail_entry = fail_entry
        self._loop = asyncio.get_running_loop()
        self._no_instance_since_ns = _now_ns()
        # One timer for all: there may be many entries.
        self._timer: asyncio.TimerHandle | None = None

    def restart_clock(self) -> None:
        """The last instance is lost: open entries have waited since now."""
        self._no_instance_since_ns = _now_ns()

    def start_timer(self) -> None:
        """Entries may be waiting while there is no instance."""
        if self._timer is None and self._entries:
            self._on_timer()

    def stop_timer(self) -> None:
        """There is an instance, or nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        now_ns = _now_ns()
        self._timer = None
        due, next_ns = overdue(self._entries, self._no_instance_since_ns, self._limit_ns, now_ns)
        if next_ns is not None:
            delay_s = max((next_ns - now_ns) / 1e9, _MIN_INTERVAL_S)
            self._timer = self._loop.call_later(delay_s, self._on_timer)
        for entry in due:
            self._fail_entry(entry)


def overdue(
    entries: Iterable[Entry], no_instance_since_ns: int, limit_ns: int, now_ns: int
) -> tuple[list[Entry], int | None]:
    """The entries to fail now, and when the next one is due; None: no other waits."""
    due: list[Entry] = []
    for entry in entries:
        if entry.state is RequestState.EXECUTING:  # an executor that leaves still has it
            continue
        due_ns = max(entry.received_ns, no_instance_since_ns) + limit_ns
        if due_ns > now_ns:
            return due, due_ns
        due.append(entry)
    return due, None
