"""Fails entries of a model version that have waited too long while no executor has the version."""

# layout: not pure, uses asyncio and time
# layout: not covered, waits in an event loop

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Unavailable
from nereid_scheduler.core.requests.entry import RequestState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.batcher import Batcher
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.versions.open_requests import OpenRequests

_MIN_INTERVAL_S: Final = 0.02
_now_ns = time.monotonic_ns


class ExecutorWait:
    """Fail entries that have waited too long, oldest first. Create it inside the event loop."""

    def __init__(
        self, config: ModelConfig, requests: OpenRequests, batcher: Batcher, limit_s: float
    ) -> None:
        self._requests = requests
        self._batcher = batcher
        self._limit_s = limit_s
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._no_instance_since_ns = _now_ns()
        self._timer: asyncio.TimerHandle | None = None

    def set_config(self, config: ModelConfig) -> None:
        """Set a configuration with other instance groups."""
        self._config = config

    def restart_clock(self) -> None:
        """Count the wait of all open entries from now, as the last instance was just lost."""
        self._no_instance_since_ns = _now_ns()

    def begin(self) -> None:
        """Limit how long open entries wait, as there is no instance."""
        if self._only_passive:
            # submit() must return an entry before the entry fails.
            self._loop.call_soon(self._fail_all)
        elif self._timer is None and self._requests.entries:
            self._on_timer()

    def end(self) -> None:
        """Stop failing entries, as there is an instance or no entry waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _only_passive(self) -> bool:
        groups = self._config.proto.instance_group
        return bool(groups) and all(group.passive for group in groups)

    def _on_timer(self) -> None:
        now_ns = _now_ns()
        self._timer = None
        entries, limit_ns = self._requests.entries, int(self._limit_s * 1e9)
        due, next_ns = overdue(entries, self._no_instance_since_ns, limit_ns, now_ns)
        if next_ns is not None:
            delay_s = max((next_ns - now_ns) / 1e9, _MIN_INTERVAL_S)
            self._timer = self._loop.call_later(delay_s, self._on_timer)
        for entry in due:
            self._fail(entry)

    def _fail_all(self) -> None:
        for entry in list(self._requests.entries):
            if entry.state is not RequestState.EXECUTING:
                self._fail(entry)

    def _fail(self, entry: Entry) -> None:
        if entry.state is RequestState.RESPONDED:
            return
        self._batcher.remove_entry(entry)
        name, number = self._requests.named
        if self._only_passive:
            text = f"model '{name}' has only passive instances, which get no requests"
        else:
            text = (
                f"no executor has model '{name}' version {number}; waited {self._limit_s:g} s for"
                " one"
            )
        self._requests.fail_entry(entry, Unavailable(text, accepted=True))


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
