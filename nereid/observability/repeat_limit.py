"""Limit on log lines of one kind (logger and format): a burst of lines, then a few per second."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

# An operator who starts some hundred broken models wants to see each of them.
_BURST: Final = 200
_PER_S: Final = 2.0
_MAX_EVENTS: Final = 1024
# A message may quote what a client sent.
_MAX_LENGTH: Final = 4096
_OTHERS: Final = ("", "")


class _Event:
    """One kind of line; `left` more may be logged, as of at_s."""

    __slots__ = ("at_s", "left", "omitted")

    def __init__(self, left: float, at_s: float) -> None:
        self.left = left
        self.at_s = at_s
        self.omitted = 0


class RepeatLimit:
    """Limits warnings and errors; other records pass. Only one thread at a time may use it."""

    def __init__(
        self,
        level: int,
        burst: float = _BURST,
        per_s: float = _PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a limit for records of this level and above."""
        self._level = level
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._events: dict[tuple[str, str], _Event] = {}

    def admit(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """Return the record, with the number of omitted lines, or `None` to omit it."""
        if record.levelno < self._level:
            return record
        event = self._event_of(record)
        if event.left < 1:
            event.omitted += 1
            return None
        event.left -= 1
        message = record.getMessage()
        if not event.omitted and len(message) <= _MAX_LENGTH:
            return record
        if len(message) > _MAX_LENGTH:
            message = f"{message[:_MAX_LENGTH]}... ({len(message)} characters)"
        if event.omitted:
            message += f" (and {event.omitted} such lines before it, which were left out)"
            event.omitted = 0
        changed = copy.copy(record)
        changed.msg, changed.args = message, ()
        return changed

    def _event_of(self, record: logging.LogRecord) -> _Event:
        now = self._clock()
        key = record.name, str(record.msg)
        event = self._events.get(key)
        if event is None:
            if len(self._events) >= _MAX_EVENTS:
                key = _OTHERS
            event = self._events.setdefault(key, _Event(self._burst, now))
        event.left = min(self._burst, event.left + (now - event.at_s) * self._per_s)
        event.at_s = now
        return event
