"""What happened in a simulation: what clients asked and got, in the campaign's form, a digest of
all events, the story of one request, and what must not have happened.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from typing import TYPE_CHECKING

from tests.torment.log_lines import is_breach, unpermitted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.simulation.virtual_time import Clock
    from tests.torment.history import Request

_MAX_VIOLATIONS = 20


class History:
    """Events in their order. story: the number of the request whose events are kept."""

    def __init__(self, clock: Clock, story: int | None = None) -> None:
        self._clock = clock
        self._digest = hashlib.blake2b(digest_size=16)
        self._story = story
        self.story: list[str] = []
        self.events: Counter[str] = Counter()
        self.violations: list[str] = []
        # All requests by their numbers.
        self.requests: dict[int, Request] = {}
        self.repeated: list[int] = []

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def add(self, kind: str, facts: object = "", requests: Iterable[int] = ()) -> None:
        """An event, with the numbers of the requests that it concerns."""
        requests = list(requests)
        line = f"{self._clock.now_ns} {kind}: {facts} {requests or ''}"
        self._digest.update(line.encode())
        self.events[kind] += 1
        # What befalls processes may explain what befalls requests.
        if self._story is not None and (self._story in requests or not requests):
            self.story.append(f"{self._clock.now_ns / 1e6:14.6f} ms  {kind}: {facts}")

    def violate(self, what: str, requests: Iterable[int] = ()) -> None:
        """Something that must not happen."""
        requests = list(requests)
        self.add("VIOLATION", what, requests)
        if len(self.violations) < _MAX_VIOLATIONS:
            about = f" (requests {requests})" if requests else ""
            self.violations.append(f"at {self._clock.now_ns / 1e9:.6f} s: {what}{about}")

    # ---- clients

    def begin(self, request: Request) -> None:
        """A client sends it."""
        request.began_s = self._clock.now_ns / 1e9
        if request.id in self.requests:
            self.repeated.append(request.id)
        self.requests[request.id] = request
        self.add("sent", f"{request.model} by {request.client}", [request.id])

    def end(self, request: Request) -> None:
        """It is over; its outcome is set."""
        request.ended_s = self._clock.now_ns / 1e9
        assert request.outcome is not None, "it has not ended"
        self.add("ended", f"{request.outcome.value} {request.status} {request.text}", [request.id])


class LogLines(logging.Handler):
    """No service may log an error that no fault explains, or that a peer broke a protocol."""

    def __init__(self, history: History, kinds: Iterable[str]) -> None:
        """kinds: of the faults that there have been; it grows."""
        super().__init__(logging.WARNING)
        self._history = history
        self._kinds = kinds

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR and not is_breach(str(record.msg)):
            return
        text = record.getMessage()
        if record.exc_info:
            text += f" ({record.exc_info[1]!r})"
        if list(unpermitted([f"{record.name} - {record.levelname} {text}"], [*self._kinds])):
            self._history.violate(f"in the log: {text}")
