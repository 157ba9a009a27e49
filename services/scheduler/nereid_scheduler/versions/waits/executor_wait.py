"""Fails entries of a model version that have waited too long while no executor has the version."""

# layout: not pure, uses asyncio and time
# layout: not covered, waits in an event loop

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from nereid_scheduler.core.requests.entry import RequestState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid_scheduler.core.requests.entry import Entry

_MIN_INTERVAL_S: Final = 0.02
_now_ns = time.monotonic_ns


class ExecutorWait:
    """Fail entries that have waited too long, oldest first. Create it inside the event loop."""

    def __init__(
        self, limit_s: float, entries: Collection[Entry], fail_entry: Callable[[Entry], None]
    ) -> None:
        """entries: all open entries in order of arrival."""
        self._limit_ns = int(limit_s * 1e9)
        self._entries = entries
        self._fail_entry = fail_entry
        self._loop = asyncio.get_running_loop()
        self._no_instance_since_ns = _now_ns()
        self._timer: asyncio.TimerHandle | None = None

    def restart_clock(self) -> None:
        """Count the wait of all open entries from now, as the last instance was just lost."""
        self._no_instance_since_ns = _now_ns()

    def start_timer(self) -> None:
        """Start to fail overdue entries, as there is no instance."""
        if self._timer is None and self._entries:
            self._on_timer()

    def stop_timer(self) -> None:
        """Stop failing entries, as there is an instance or no entry waits."""
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
    """Return the entries to fail now, and the time of the next check, if any entry is left."""
    due: list[Entry] = []
    for entry in entries:
        if entry.state is RequestState.EXECUTING:  # An executor that is leaving still has it.
            continue
        due_ns = max(entry.received_ns, no_instance_since_ns) + limit_ns
        if due_ns > now_ns:
            return due, due_ns
        due.append(entry)
    return due, None
