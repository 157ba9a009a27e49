"""What the scheduler records of sampled requests, whichever form it is exported in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid.observability.tracing import Span
    from nereid_scheduler.core.requests.entry import Entry


class EntryTrace(Protocol):
    """One sampled request from its acceptance to its end."""

    @property
    def context(self) -> bytes:
        """Of the request as a whole."""

    @property
    def attempt(self) -> bytes:
        """Of the current attempt to execute it."""

    @property
    def lookup(self) -> bytes:
        """Of the cache lookup, once there is one."""

    def begin_attempt(self, now_ns: int) -> bytes:
        """It is sent to an instance; returns the context to send along."""

    def begin_steps(self) -> bytes:
        """An ensemble submits its first steps; returns the context to send along."""

    def end_attempt(self, entry: Entry, attempt: Span, started_ns: int, *, lost: bool) -> None:
        """The attempt is over. attempt: the span of its whole batch, which began at started_ns."""

    def undo_attempt(self) -> None:
        """It was sent to an instance that has not begun it, and is queued again."""

    def responded(self, response: InferResponse, now_ns: int) -> None:
        """A decoupled model has made one of its responses."""

    def begin_lookup(self) -> bytes:
        """The cache is queried; returns the context to send along."""

    def end_lookup(self, started_ns: int, ended_ns: int, *, hit: bool) -> None:
        """The cache has replied, or its time is over, which is a miss."""

    def end(
        self, entry: Entry, model: tuple[str, int], response: InferResponse | None, now_ns: int
    ) -> None:
        """The request has ended with this response; None: it was cancelled."""

    def record_batch(self, span: Span) -> None:
        """The span of a batch whose first sampled member this is."""


class RefusedRequest(NamedTuple):
    """A request that no model has accepted, since when it was waiting for one, and the error."""

    request: InferRequest
    name: str
    version: str
    since_ns: int
    error: str


class Traces(Protocol):
    """Makes the traces of one scheduler, in one form."""

    def begin(self, request: InferRequest, now_ns: int) -> EntryTrace | None:
        """The trace of a request that has arrived; None: it is not sampled."""

    def refused(self, refusal: RefusedRequest) -> None:
        """A sampled request was refused."""

    def close(self) -> None:
        """Export what is left, within a bounded time; blocks, so call it in a thread."""
