"""The last events of one service, for its timeline and for the console."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.timeline.records import PROBLEMS, Event
from nereid.timeline.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_EVENTS: Final = 10_000
# Clients choose names, and models the texts of errors.
_MAX_NAME: Final = 300
_MAX_TEXT: Final = 1000


class LoggedEvent(NamedTuple):
    """An event, and what a timeline does not show of it.

    model: the plain name of the model that it is about. cause, principal: why a model was loaded or
    unloaded, and who asked for it. All may be empty.
    """

    ended_ns: int
    event: Event
    # Counts the service's events from 1 on.
    number: int
    model: str
    cause: str
    principal: str


def _logged(event: LoggedEvent) -> LoggedEvent:
    return event


def _number(logged: LoggedEvent) -> int:
    return logged.number


class EventLog:
    """The last events of a service, as a ring of its recorder (ring.AnyRing)."""

    def __init__(self, max_events: int = _MAX_EVENTS) -> None:
        self._ring = Ring(_logged, max_events)
        # Number of the last event.
        self.recorded = 0

    @property
    def lost_until_ns(self) -> int:
        """Latest end time of dropped events; see AnyRing."""
        return self._ring.lost_until_ns

    def since(self, from_ns: int) -> Iterator[Event]:
        """Yield the events that ended at this time or later; see AnyRing."""
        return (logged.event for logged in self._ring.since(from_ns))

    def last(self, most: int) -> Sequence[LoggedEvent]:
        """Return at most so many of the last events, the oldest first.

        Half of them may be the last problems, so that a start with many loads hides none.
        """
        problems: list[LoggedEvent] = []
        others: list[LoggedEvent] = []
        for logged in self._ring.since(0):
            (problems if logged.event.what in PROBLEMS else others).append(logged)
        wanted = max((most + 1) // 2, most - len(others))
        del problems[: max(0, len(problems) - wanted)]
        del others[: max(0, len(problems) + len(others) - most)]
        return sorted([*problems, *others], key=_number)

    def record(  # noqa: PLR0913 (by keyword)
        self,
        what: str,
        subject: str,
        detail: str = "",
        *,
        from_ns: int = 0,
        model: str = "",
        cause: str = "",
        principal: str = "",
    ) -> None:
        """Record an event. This method is a `RecordEvent`."""
        now_ns = monotonic_ns()
        subject, detail = subject[:_MAX_NAME], detail[:_MAX_TEXT]
        event = Event(what, subject, from_ns or now_ns, now_ns if from_ns else 0, detail)
        self.recorded += 1
        logged = LoggedEvent(now_ns, event, self.recorded, model[:_MAX_NAME], cause, principal)
        self._ring.append(logged)
