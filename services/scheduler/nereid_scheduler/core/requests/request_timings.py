"""Computes the timings of a request, for clients that ask to have them in the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.wire.messages import RequestTimings
from nereid_scheduler.core.requests.entry import EXECUTING, RequestState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.model_config import ModelConfig
    from nereid_scheduler.core.requests.entry import Entry

# Operators see these phases as entries of the Server-Timing header.
CACHE: Final = "cache"
QUEUE: Final = "queue"
BATCH_WAIT: Final = "batch-wait"
INPUT: Final = "input"
INFERENCE: Final = "inference"
OUTPUT: Final = "output"


def queue_delay_ns(config: ModelConfig) -> int:
    """Return how long a batch may wait while an instance is free."""
    if config.sequences is None:
        return 0 if config.batching is None else config.batching.max_queue_delay_us * 1000
    oldest = config.sequences.oldest
    return 1000 * (config.sequences if oldest is None else oldest).max_queue_delay_us


def timings_of(entry: Entry, delay_ns: int, now_ns: int, *, failed: bool) -> RequestTimings:
    """Return an ending entry's timings. As in statistics, a lost attempt counts as queued."""
    execution, state = entry.execution, entry.state
    if state is RequestState.CACHE_LOOKUP:
        # The cache had a response, or the entry failed before its lookup was over.
        return RequestTimings(((CACHE, now_ns - entry.received_ns),), cached=not failed)
    phases: list[tuple[str, int]] = []
    if entry.cache_lookup is not None:
        phases.append((CACHE, entry.enqueued_ns - entry.received_ns))
    attempts = entry.retries
    if execution is None:
        if state is EXECUTING:
            # The instance was lost, or it has not reported the execution yet.
            attempts += 1
        else:
            phases.append((QUEUE, now_ns - entry.enqueued_ns))
        return RequestTimings(tuple(phases), attempt=attempts)
    idle_ns = execution.started_ns - max(entry.enqueued_ns, execution.idle_since_ns)
    batch_wait_ns = max(0, min(delay_ns, idle_ns))
    phases.append((QUEUE, execution.started_ns - entry.enqueued_ns - batch_wait_ns))
    if delay_ns:
        phases.append((BATCH_WAIT, batch_wait_ns))
    phases += (
        (INPUT, execution.compute_input_ns),
        (INFERENCE, execution.compute_infer_ns),
        (OUTPUT, execution.compute_output_ns),
    )
    return RequestTimings(
        # Iterations may begin before the request is queued again: differences may be negative.
        tuple((name, max(0, ns)) for name, ns in phases),
        execution.batch_size,
        execution.instance,
        attempts + 1,
    )


def combined(own: RequestTimings | None, step: RequestTimings) -> RequestTimings:
    """Return timings with the phases of both; a step's batch size and instance are left out."""
    if own is None:
        own = RequestTimings()
    phases = dict(own.phases)
    for name, ns in step.phases:
        phases[name] = phases.get(name, 0) + ns
    return RequestTimings(_in_order(phases.items()), attempt=max(own.attempt, step.attempt))


def _in_order(phases: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(phases, key=lambda phase: _ORDER.get(phase[0], len(_ORDER))))


_ORDER: Final = {
    name: index for index, name in enumerate((CACHE, QUEUE, BATCH_WAIT, INPUT, INFERENCE, OUTPUT))
}
