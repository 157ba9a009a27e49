"""Exports sampled requests as spans: the wait in the queue, each attempt to execute, the end.

A batch has one span, in the trace of its first sampled member; it links to the attempts of all
members, and they link back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nereid.observability.trace_config import parse_trace_config
from nereid.observability.tracers import open_tracer
from nereid.observability.tracing import (
    Span,
    SpanKind,
    child_context,
    is_above_steps,
    is_sampled,
    monotonic_to_unix_ns,
)
from nereid_scheduler.core.requests.entry import CACHE_LOOKUP
from nereid_scheduler.core.requests.request_trace import RequestTrace
from nereid_scheduler.versions.tracing.timestamps import TimestampTraces
from nereid_scheduler.versions.tracing.traces import NO_TRACES, Traces

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid.observability.trace_config import TraceSettings
    from nereid.observability.tracing import Attribute, Tracer
    from nereid_scheduler.batching.policies.latency_target import LatencyTarget
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.execution import Execution
    from nereid_scheduler.versions.tracing.traces import RefusedRequest


class SpanTraces(Traces):
    """Reader that makes spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, request: InferRequest) -> RequestTrace | None:
        """Return the record for a request, or `None` if it is not sampled."""
        context = request.trace_context
        return RequestTrace(context, has_spans=True) if is_sampled(context) else None

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

    def end_batch(
        self, sent: SentBatch, execution: Execution, target: LatencyTarget | None
    ) -> None:
        """Record the batch and, for each sampled member, the wait before its attempt and this.

        The last batch that the target has recorded as executed must be this one.
        """
        members = [(entry, entry.trace) for entry in sent.batch.entries if entry.trace is not None]
        if not members:
            return
        first = members[0][1]
        offset_ns = monotonic_to_unix_ns()
        attributes: dict[str, Attribute] = {
            "nereid.batch.size": sent.batch.size,
            "nereid.batch.members": len(sent.batch.entries),
            "nereid.batch.closed_by": sent.batch.reason,
            "nereid.executor": sent.executor,
            "nereid.instance": sent.instance,
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
            start_ns=execution.started_ns + offset_ns,
            end_ns=execution.finished_ns + offset_ns,
            attributes=attributes,
            links=[trace.attempt for _, trace in members],
            error=sent.error if sent.execution is None else None,
        )
        self._tracer.record(batch)
        for entry, trace in members:
            queued_ns = trace.queued_ns or entry.enqueued_ns
            attempt = Span(
                name="execute",
                context=trace.attempt,
                parent=trace.context,
                start_ns=batch.start_ns,
                end_ns=batch.end_ns,
                attributes={"nereid.attempt": trace.attempts, **attributes},
                links=(batch.context,),
                error=batch.error,
                kind=SpanKind.CLIENT,
            )
            wait = _child_span("queue", trace, queued_ns, execution.started_ns, offset_ns)
            self._tracer.record(wait, attempt)

    def end_request(
        self,
        trace: RequestTrace,
        entry: Entry,
        model: tuple[str, int],
        response: InferResponse | None,
        now_ns: int,
    ) -> None:
        """Record the request, its cache lookup and, if it ended while it waited, the wait."""
        offset_ns = monotonic_to_unix_ns()
        error: str | None = "cancelled"
        if response is not None:
            error = None if response.error is None else response.error.message
        self._end_lookup(trace, entry, now_ns, offset_ns, hit=error is None)
        queued_ns = trace.ended_ns or entry.enqueued_ns
        if trace.waits and 0 < queued_ns < now_ns:
            self._tracer.record(_child_span("queue", trace, queued_ns, now_ns, offset_ns))
        name, version = model
        attributes: dict[str, Attribute] = {
            "triton.model_name": name,
            "triton.model_version": version,
            "nereid.attempts": trace.attempts,
        }
        if entry.request.request_id:
            attributes["triton.request_id"] = entry.request.request_id
        if trace.skipped_steps:
            attributes["nereid.skipped_steps"] = ",".join(trace.skipped_steps)
        span = Span(
            name=name,
            context=trace.context,
            parent=trace.parent,
            start_ns=entry.received_ns + offset_ns,
            end_ns=now_ns + offset_ns,
            attributes=attributes,
            events=[("nereid.response", sent_ns + offset_ns) for sent_ns in trace.responses_ns],
            error=error,
            kind=_model_kind(trace.parent),
        )
        self._tracer.record(span)

    def _end_lookup(
        self, trace: RequestTrace, entry: Entry, now_ns: int, offset_ns: int, *, hit: bool
    ) -> None:
        """Record the cache lookup of an entry that had one of its own, or got its response."""
        lookup, ended_ns = entry.cache_lookup, now_ns
        if lookup is not None and not lookup.waiting:
            hit, ended_ns = False, entry.received_ns + lookup.waited_ns
        elif entry.state is not CACHE_LOOKUP:
            hit, ended_ns = False, entry.enqueued_ns if trace.lookup else 0
        elif not hit and not trace.lookup:
            return  # It followed another entry, whose lookup it was.
        if ended_ns:
            span = Span(
                name="cache lookup",
                context=trace.lookup or child_context(trace.context),
                parent=trace.context,
                start_ns=entry.received_ns + offset_ns,
                end_ns=ended_ns + offset_ns,
                attributes={"nereid.cache.hit": hit},
                kind=SpanKind.CLIENT,
            )
            self._tracer.record(span)

    def close(self) -> None:
        """Send the remaining spans."""
        self._tracer.close()


def open_traces(settings: TraceSettings) -> Traces:
    """Return the traces that the settings ask for."""
    if parse_trace_config(settings.trace_config).to_file:
        return TimestampTraces()
    tracer = open_tracer(settings, "scheduler")
    return NO_TRACES if tracer is None else SpanTraces(tracer)


def _child_span(name: str, trace: RequestTrace, start_ns: int, end_ns: int, offset_ns: int) -> Span:
    return Span(
        name=name,
        context=child_context(trace.context),
        parent=trace.context,
        start_ns=start_ns + offset_ns,
        end_ns=end_ns + offset_ns,
    )


def _model_kind(parent: bytes) -> SpanKind:
    """Return INTERNAL for an ensemble's step, which is called in this process; else SERVER."""
    return SpanKind.INTERNAL if is_above_steps(parent) else SpanKind.SERVER
