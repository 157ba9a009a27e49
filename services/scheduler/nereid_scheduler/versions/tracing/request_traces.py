"""Records sampled requests as spans: the wait in the queue, each attempt to execute, the end.

A batch has one span, in the trace of its first sampled member; it links to the attempts of all
members, and they link back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nereid.observability.trace_config import parse_trace_config
from nereid.observability.tracers import open_tracer
from nereid.observability.tracing import (
    Span,
    SpanKind,
    above_steps,
    child_context,
    is_above_steps,
    is_sampled,
    monotonic_to_unix_ns,
)
from nereid_scheduler.core.requests.entry_trace import NO_TRACES
from nereid_scheduler.versions.tracing.trace_timestamps import TimestampTraces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid.observability.trace_config import TraceSettings
    from nereid.observability.tracing import Attribute, Tracer
    from nereid_scheduler.batching.latency_target import LatencyTarget
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.entry_trace import (
        EntryTrace,
        RefusedRequest,
        Traces,
    )

# Only the first responses of a request become events of its span.
_MAX_RESPONSE_EVENTS: Final = 128


class SpanTraces:
    """Factory for traces that consist of spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.close = tracer.close

    def begin(self, request: InferRequest, now_ns: int) -> EntryTrace | None:
        """Return the trace of a request, or `None` if it is not sampled."""
        context = request.trace_context
        return SpanTrace(self._tracer, context, now_ns) if is_sampled(context) else None

    def refused(self, refusal: RefusedRequest) -> None:
        """Record a span with the error for a refused request."""
        request, name, version, since_ns, error = refusal
        offset_ns = monotonic_to_unix_ns()
        attributes: dict[str, Attribute] = {"triton.model_name": name}
        if version.isdecimal():
            attributes["triton.model_version"] = int(version)
        if request.request_id:
            attributes["triton.request_id"] = request.request_id
        span = Span(
            name=name,
            context=child_context(request.trace_context),
            parent=request.trace_context,
            start_ns=since_ns + offset_ns,
            end_ns=time.monotonic_ns() + offset_ns,
            attributes={**attributes, "nereid.attempts": 0},
            error=error,
            kind=_model_kind(request.trace_context),
        )
        self._tracer.record(span)


def open_traces(settings: TraceSettings) -> Traces:
    """Return the traces that the settings ask for."""
    if parse_trace_config(settings.trace_config).to_file:
        return TimestampTraces()
    tracer = open_tracer(settings, "scheduler")
    return NO_TRACES if tracer is None else SpanTraces(tracer)


class SpanTrace:
    """EntryTrace that consists of spans."""

    __slots__ = (
        "_attempts",
        "_parent",
        "_queued_ns",
        "_received_ns",
        "_responses",
        "_tracer",
        "_waits",
        "attempt",
        "context",
        "lookup",
    )

    def __init__(self, tracer: Tracer, parent: bytes, received_ns: int) -> None:
        self._tracer = tracer
        self._parent = parent
        self._received_ns = received_ns
        self.context = child_context(parent)
        self.attempt = b""
        self.lookup = b""
        self._attempts = 0
        self._responses: list[int] | None = None
        self._waits = True
        # When the request was last queued again after a lost attempt; 0 if never.
        self._queued_ns = 0

    def begin_attempt(self, now_ns: int) -> bytes:  # noqa: ARG002 - of EntryTrace
        """Begin an attempt; return the trace context of the attempt's span."""
        self._attempts += 1
        self._waits = False
        self.attempt = child_context(self.context)
        return self.attempt

    def begin_steps(self) -> bytes:
        """Return the trace context for the steps of an ensemble."""
        self._waits = False
        return above_steps(self.context)

    def end_attempt(self, entry: Entry, attempt: Span, started_ns: int, *, lost: bool) -> None:
        """Record two spans: the wait before the attempt, and the attempt itself."""
        queued_ns = self._queued_ns or entry.enqueued_ns
        offset_ns = attempt.start_ns - started_ns
        span = Span(
            name="execute",
            context=self.attempt,
            parent=self.context,
            start_ns=attempt.start_ns,
            end_ns=attempt.end_ns,
            attributes={"nereid.attempt": self._attempts, **attempt.attributes},
            links=(attempt.context,),
            error=attempt.error,
            kind=SpanKind.CLIENT,
        )
        self._tracer.record(self._child_span("queue", queued_ns, started_ns, offset_ns), span)
        self._waits = lost
        self._queued_ns = attempt.end_ns - offset_ns

    def undo_attempt(self) -> None:
        """Do not count an attempt that the instance has not begun."""
        self._attempts -= 1
        self._waits = True

    def responded(self, response: InferResponse, now_ns: int) -> None:  # noqa: ARG002 - of EntryTrace
        """Keep the time of a response, which becomes an event of the request's span."""
        if self._responses is None:
            self._responses = []
        if len(self._responses) < _MAX_RESPONSE_EVENTS:
            self._responses.append(now_ns)

    def begin_lookup(self) -> bytes:
        """Return the trace context of the cache lookup's span."""
        self.lookup = child_context(self.context)
        return self.lookup

    def end_lookup(self, started_ns: int, ended_ns: int, *, hit: bool) -> None:
        """Record the span of a cache lookup."""
        offset_ns = monotonic_to_unix_ns()
        span = Span(
            name="cache lookup",
            # A request that has shared another request's lookup has no context for a span yet.
            context=self.lookup or self.begin_lookup(),
            parent=self.context,
            start_ns=started_ns + offset_ns,
            end_ns=ended_ns + offset_ns,
            attributes={"nereid.cache.hit": hit},
            kind=SpanKind.CLIENT,
        )
        self._tracer.record(span)

    def end(
        self, entry: Entry, model: tuple[str, int], response: InferResponse | None, now_ns: int
    ) -> None:
        """Record the span of the request; if it ended while waiting, also the span of the wait."""
        offset_ns = monotonic_to_unix_ns()
        queued_ns = self._queued_ns or entry.enqueued_ns
        if self._waits and 0 < queued_ns < now_ns:
            self._tracer.record(self._child_span("queue", queued_ns, now_ns, offset_ns))
        name, version = model
        attributes: dict[str, Attribute] = {
            "triton.model_name": name,
            "triton.model_version": version,
            "nereid.attempts": self._attempts,
        }
        if entry.request.request_id:
            attributes["triton.request_id"] = entry.request.request_id
        error: str | None = "cancelled"
        if response is not None:
            error = None if response.error is None else response.error.message
        span = Span(
            name=name,
            context=self.context,
            parent=self._parent,
            start_ns=self._received_ns + offset_ns,
            end_ns=now_ns + offset_ns,
            attributes=attributes,
            events=[("nereid.response", sent_ns + offset_ns) for sent_ns in self._responses or ()],
            error=error,
            kind=_model_kind(self._parent),
        )
        self._tracer.record(span)

    def record_batch(self, span: Span) -> None:
        """Record the span of a batch."""
        self._tracer.record(span)

    def _child_span(self, name: str, start_ns: int, end_ns: int, offset_ns: int) -> Span:
        return Span(
            name=name,
            context=child_context(self.context),
            parent=self.context,
            start_ns=start_ns + offset_ns,
            end_ns=end_ns + offset_ns,
        )


def _model_kind(parent: bytes) -> SpanKind:
    """Return INTERNAL for an ensemble's step, which is called in this process; else SERVER."""
    return SpanKind.INTERNAL if is_above_steps(parent) else SpanKind.SERVER


def end_attempts(
    instance: RemoteInstance,
    sent: SentBatch,
    now_ns: int,
    lost: str | None = None,
    target: LatencyTarget | None = None,
) -> None:
    """Record the end of a batch with sampled members. lost: cause; `None` if it was executed.

    The last batch that the target has recorded as executed must be this one.
    """
    members: Sequence[tuple[Entry, EntryTrace]] = [
        (entry, entry.trace) for entry in sent.batch.entries if entry.trace is not None
    ]
    if not members:
        return
    first = members[0][1]
    offset_ns = monotonic_to_unix_ns()
    attributes: dict[str, Attribute] = {
        "nereid.batch.size": sent.batch.size,
        "nereid.batch.members": len(sent.batch.entries),
        "nereid.batch.closed_by": sent.batch.reason,
        "nereid.executor": instance.executor,
        "nereid.instance": instance.name,
    }
    if target is not None:
        plan = target.executed_plan
        attributes |= {
            "nereid.target.p99_us": target.target_ns // 1000,
            "nereid.target.batch_size": plan.size,
            "nereid.target.delay_us": plan.delay_ns // 1000,
            "nereid.target.execution_us": plan.execution_ns // 1000,
        }
    batch = Span(
        name="batch",
        context=child_context(first.context),
        parent=first.context,
        start_ns=sent.started_ns + offset_ns,
        end_ns=now_ns + offset_ns,
        attributes=attributes,
        links=[trace.attempt for _, trace in members],
        error=lost,
    )
    first.record_batch(batch)
    for entry, trace in members:
        trace.end_attempt(entry, batch, sent.started_ns, lost=lost is not None)
