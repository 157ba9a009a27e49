"""What happened in a simulation: a digest of all of it, the story of one request, and what must not
have happened.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.simulation.virtual_time import Clock

_MOST_VIOLATIONS = 20


class History:
    """Events in their order. story: the number of the request whose events are kept."""

    def __init__(self, clock: Clock, story: int | None = None) -> None:
        self._clock = clock
        self._digest = hashlib.blake2b(digest_size=16)
        self._story = story
        self.story: list[str] = []
        self.events: Counter[str] = Counter()
        self.violations: list[str] = []

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def add(self, kind: str, facts: object = "", requests: Iterable[int] = ()) -> None:
        """An event, with the numbers of the requests that it concerns."""
        requests = list(requests)
        line = f"{self._clock.now_ns / 1e6:14.6f} ms  {kind}: {facts} {requests or ''}"
        self._digest.update(line.encode())
        self.events[kind] += 1
        if self._story in requests:
            self.story.append(line)

    def violate(self, what: str, requests: Iterable[int] = ()) -> None:
        """Something that must not happen."""
        requests = list(requests)
        self.add("VIOLATION", what, requests)
        if len(self.violations) < _MOST_VIOLATIONS:
            about = f" (requests {requests})" if requests else ""
            self.violations.append(f"at {self._clock.now_ns / 1e9:.6f} s: {what}{about}")


class ErrorLines(logging.Handler):
    """No service may log an error."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += f" ({record.exc_info[1]!r})"
        self._history.violate(f"an error in the log: {text}")
