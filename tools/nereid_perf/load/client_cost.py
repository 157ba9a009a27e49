"""Checks whether the load generator, and not the server, limits what was measured.

The load generator is the limit in two cases. First, the busiest worker was on a CPU, or waited for
one, nearly all the time. Second, more than 1 % of the requests were sent late while a worker was
busy for a good part of the time: bursts may be too much for a worker that is not busy on average.
If an almost idle worker sends requests late, the machine is noisy. Such requests are only counted,
and their response times include the delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_perf.measurement import ClientCost

if TYPE_CHECKING:
    from collections.abc import Iterable

# If a worker uses or waits for at least this share of a CPU, delays inside the worker distort the
# latencies.
_BUSY: Final = 0.85
_DELAYED: Final = 0.01
# A worker that uses less than this share of a CPU is not the reason for late requests.
_BUSY_IF_DELAYED: Final = 0.25


def client_cost(
    workers: Iterable[tuple[float, float]], *, wall_s: float, requests: int, delayed: int
) -> ClientCost:
    """Return the cost of the load generator.

    workers: for each worker, the seconds of CPU time that it took, and the seconds that it waited
    for a CPU. requests: number of requests that all workers sent.
    """
    taken = list(workers)
    cpu_s = sum(cpu for cpu, _ in taken)
    busy = max((cpu for cpu, _ in taken), default=0.0) / wall_s
    # Count waiting for a CPU like using one: on a machine without a free CPU, a worker is as late
    # as a worker that is always busy.
    wanted = max((cpu + waited for cpu, waited in taken), default=0.0) / wall_s
    return ClientCost(
        cpu_us=cpu_s * 1e6 / max(1, requests),
        busy=busy,
        delayed=delayed,
        is_bottleneck=wanted >= _BUSY
        or (delayed > _DELAYED * requests and busy >= _BUSY_IF_DELAYED),
    )
