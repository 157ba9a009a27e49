"""Records the spans of batches that a worker executes on its own stream, as the worker reports."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from nereid.core.wire.trace_context import CONTEXT_BYTES, MAX_TRACE_STATE
from nereid.observability.refusal_log import RefusalLog
from nereid.observability.tracing import is_sampled
from nereid_executor.backends.python.supervisor.rate_budget import RateBudget
from nereid_executor.batch.tracing import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.observability.tracing import Tracer

_log = logging.getLogger(__name__)

# A batch has four: when it came, had its inputs, was executed, and had its responses.
_TIMES: Final = 4
_MAX_CONTEXT_BYTES: Final = CONTEXT_BYTES + MAX_TRACE_STATE
# Requests, with four spans each. The export's queue holds 2048 spans of all instances.
_BURST: Final = 256
_PER_S: Final = 256


class ReportedSpans:
    """The spans of one instance."""

    def __init__(
        self,
        instance: str,
        max_batch_size: int,
        *,
        bounded: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """bounded: drop spans that are more than a confined worker may report."""
        self._instance = instance
        self._most = max(1, max_batch_size)
        self._budget = RateBudget(_BURST, _PER_S, now) if bounded else None
        self._drops = RefusalLog(_log)

    def record(self, tracer: Tracer | None, contexts: list[str], times: list[int]) -> None:
        """Record the spans of a batch; raise ValueError or TypeError as read_traced_batch()."""
        if tracer is None:
            return
        read, times = read_traced_batch(contexts, times, self._most)
        if self._budget is not None:
            allowed = self._budget.spend_part(len(read))
            if allowed < len(read):
                text = "spans of instance %s dropped: its worker reports more than %d requests/s"
                self._drops.report(self._instance, "spans", text, _PER_S)
            read = read[:allowed]
        record(tracer, self._instance, read, times)


def read_traced_batch(
    contexts: list[str], times: list[int], most: int
) -> tuple[list[bytes], list[int]]:
    """Return the trace contexts and the times of a batch that a worker has reported.

    most: requests of a batch. Raises ValueError or TypeError for what no batch has: an exporter
    would lose the spans of other instances with the worker's.
    """
    if len(contexts) > most or len(times) != _TIMES:
        raise ValueError("the traces of more than a batch")
    now_ns = time.perf_counter_ns()
    if not all(type(time_ns) is int and 0 <= time_ns <= now_ns for time_ns in times):
        raise ValueError("times at which a batch cannot have run")
    read = list(map(bytes.fromhex, contexts))
    if not all(is_sampled(each) and len(each) <= _MAX_CONTEXT_BYTES for each in read):
        raise ValueError("no context of a trace")
    return read, times
