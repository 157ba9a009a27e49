"""Requests of a model version that no executor has: who of them has waited long enough.

Pure: entries in order of arrival and the time, in; who is due and when to look again, out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.scheduler.entry import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.scheduler.entry import Entry


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
