"""The spans of a batch. Each sampled member's trace shows the execution of the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid.observability.tracing import (
    Span,
    SpanKind,
    child_context,
    is_sampled,
    monotonic_to_unix_ns,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.observability.tracing import Tracer
    from nereid_executor.batch.batch_reader import BatchRequest


class Run(NamedTuple):
    """Times of a batch's execution, as readings of perf_counter_ns()."""

    contexts: list[bytes]
    started_ns: int
    stacked_ns: int
    ran_ns: int
    ended_ns: int
    # Why the batch failed as a whole; `None` if it did not.
    error: str | None


def sampled(requests: Iterable[BatchRequest]) -> list[bytes]:
    """Return the trace contexts of the sampled requests."""
    return [context for request in requests if is_sampled(context := request.trace_context)]


def record(tracer: Tracer, instance: str, run: Run) -> None:
    """Record the spans of a batch: compute, and its child spans input, infer and output."""
    # On Linux, time.monotonic_ns() and perf_counter_ns() have the same starting point.
    offset_ns = monotonic_to_unix_ns()
    started_ns, stacked_ns = run.started_ns + offset_ns, run.stacked_ns + offset_ns
    ran_ns, ended_ns = run.ran_ns + offset_ns, run.ended_ns + offset_ns
    parts = (
        ("compute input", started_ns, stacked_ns),
        ("compute infer", stacked_ns, ran_ns),
        ("compute output", ran_ns, ended_ns),
    )
    for parent in run.contexts:
        context = child_context(parent)
        compute = Span(
            name="compute",
            context=context,
            parent=parent,
            start_ns=started_ns,
            end_ns=ended_ns,
            attributes={"nereid.instance": instance},
            error=run.error,
            kind=SpanKind.SERVER,
        )
        spans = [
            Span(
                name=name,
                context=child_context(context),
                parent=context,
                start_ns=start,
                end_ns=end,
            )
            for name, start, end in parts
        ]
        tracer.record(compute, *spans)
