"""The spans of a batch. Each sampled member's trace shows the execution of the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def sampled(requests: Iterable[BatchRequest]) -> list[bytes]:
    """Return the trace contexts of the sampled requests."""
    return [context for request in requests if is_sampled(context := request.trace_context)]


def record(
    tracer: Tracer,
    instance: str,
    contexts: Iterable[bytes],
    times_ns: Iterable[int],
    error: str | None = None,
) -> None:
    """Record the spans of a batch: compute, and its child spans input, infer and output.

    times_ns: readings of perf_counter_ns() when the batch came, had its inputs, and was executed,
    and when its responses were made. error: why the batch failed as a whole.
    """
    # On Linux, time.monotonic_ns() and perf_counter_ns() have the same starting point.
    offset_ns = monotonic_to_unix_ns()
    started_ns, stacked_ns, ran_ns, ended_ns = (time_ns + offset_ns for time_ns in times_ns)
    parts = (
        ("compute input", started_ns, stacked_ns),
        ("compute infer", stacked_ns, ran_ns),
        ("compute output", ran_ns, ended_ns),
    )
    for parent in contexts:
        context = child_context(parent)
        compute = Span(
            name="compute",
            context=context,
            parent=parent,
            start_ns=started_ns,
            end_ns=ended_ns,
            attributes={"nereid.instance": instance},
            error=error,
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
