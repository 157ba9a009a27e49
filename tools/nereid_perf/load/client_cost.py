"""Checks whether the load generator, and not the server, limits what was measured.

It does if a worker used or wanted a CPU nearly all the time, or if over 1 % of requests were late
while a worker was fairly busy. If an almost idle worker is late, the machine is noisy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_perf.measurement import ClientCost

if TYPE_CHECKING:
    from collections.abc import Iterable

# Share of a CPU, used or waited for, from which delays in the worker distort latencies.
_BUSY: Final = 0.85
_DELAYED: Final = 0.01
# A worker below this share of a CPU is not the reason for late requests.
_BUSY_IF_DELAYED: Final = 0.25


def client_cost(
    workers: Iterable[tuple[float, float]], *, wall_s: float, requests: int, delayed: int
) -> ClientCost:
    """Return the load generator's cost; `workers` has (CPU seconds, seconds waited for a CPU)."""
    taken = list(workers)
    cpu_s = sum(cpu for cpu, _ in taken)
    busy = max((cpu for cpu, _ in taken), default=0.0) / wall_s
    # Waiting for a CPU counts like using one: such a worker is as late as a busy one.
    wanted = max((cpu + waited for cpu, waited in taken), default=0.0) / wall_s
    return ClientCost(
        cpu_us=cpu_s * 1e6 / max(1, requests),
        busy=busy,
        delayed=delayed,
        is_bottleneck=wanted >= _BUSY
        or (delayed > _DELAYED * requests and busy >= _BUSY_IF_DELAYED),
    )
