"""Limits how many requests a batch has, so that each instance gets its share of them.

Without a limit, clients that wait for their responses form groups: those whose batch has just ended
come back together, and go to the same instance, while another instance is busy with all the others.
A small group is then served several times as often as a large one.

If executions are short, one further share is gathered while the instances execute: otherwise the
executor is idle while the gateway converts requests, and the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid.model_config import DynamicBatching

# Rough cost of a request outside the executor. If an execution takes less than this for each open
# request, it counts as short.
_OVERHEAD_NS: Final = 20_000
# With fewer open requests than this, smaller batches of a short execution cost more than they save.
_MIN_OPEN: Final = 32


def can_share(batching: DynamicBatching, max_batch_size: int) -> bool:
    """Return whether a batch may leave without waiting requests that would fit."""
    return not batching.max_queue_delay_us and batching.preferred_batch_sizes in (
        (),
        (max_batch_size,),
    )


def fair_share(open_requests: int, instances: int, execution_ns: float) -> int:
    """Return the maximum number of requests in a batch; 0 means no limit.

    open_requests: queued and executing requests. instances: number of ready instances.
    execution_ns: average time of an execution; 0 if it is not known.
    """
    shares = instances
    if execution_ns <= open_requests * _OVERHEAD_NS:
        if not execution_ns or open_requests < _MIN_OPEN:
            return 0
        shares += 1
    return -(-open_requests // shares) if shares > 1 else 0
