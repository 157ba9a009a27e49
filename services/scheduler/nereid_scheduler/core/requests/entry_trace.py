"""Interface for traces of sampled requests; there is one implementation for each export format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid.observability.tracing import Span
    from nereid_scheduler.core.requests.entry import Entry


class EntryTrace(Protocol):
    """Trace of one sampled request, from its acceptance to its end."""

    @property
    def context(self) -> bytes:
        """Trace context of the request as a whole."""

    @property
    def attempt(self) -> bytes:
        """Trace context of the current attempt to execute the request."""

    @property
    def lookup(self) -> bytes:
        """Trace context of the cache lookup; empty until a lookup has begun."""

    def begin_attempt(self, now_ns: int) -> bytes:
        """Begin an attempt to execute; return the trace context to send to the instance."""

    def begin_steps(self) -> bytes:
        """Begin the first steps of an ensemble; return the trace context to send with them."""

    def end_attempt(self, entry: Entry, attempt: Span, started_ns: int, *, lost: bool) -> None:
        """End an attempt. attempt: span of the whole batch. started_ns: time at which it began."""

    def undo_attempt(self) -> None:
        """Undo an attempt that the instance has not begun; the request is queued again."""

    def responded(self, response: InferResponse, now_ns: int) -> None:
        """Record one of the responses of a decoupled model."""

    def begin_lookup(self) -> bytes:
        """Begin a cache lookup; return the trace context to send to the cache."""

    def end_lookup(self, started_ns: int, ended_ns: int, *, hit: bool) -> None:
        """End a cache lookup, because a reply came or its time limit is over (a miss)."""

    def end(
        self, entry: Entry, model: tuple[str, int], response: InferResponse | None, now_ns: int
    ) -> None:
        """End the request with this response; `None` means that it was cancelled."""

    def record_batch(self, span: Span) -> None:
        """Record the span of a batch. Call this for the first sampled request of the batch only."""


class RefusedRequest(NamedTuple):
    """Request that was refused, with the time of its arrival and the error."""

    request: InferRequest
    name: str
    version: str
    since_ns: int
    error: str


class Traces(Protocol):
    """Factory for the traces of one scheduler, in one export format."""

    def begin(self, request: InferRequest, now_ns: int) -> EntryTrace | None:
        """Return the trace of a request that has arrived, or `None` if it is not sampled."""

    def refused(self, refusal: RefusedRequest) -> None:
        """Handle the refusal of a sampled request."""

    def close(self) -> None:
        """Export what is left, within a limited time. This blocks, so call it in a thread."""


class NoTraces:
    """Traces of a scheduler that traces no request."""

    def begin(self, request: InferRequest, now_ns: int) -> None:
        """Return `None`, as for a request that is not sampled."""

    def refused(self, refusal: RefusedRequest) -> None:
        """Record nothing."""

    def close(self) -> None:
        """Export nothing."""


NO_TRACES: Final = NoTraces()
