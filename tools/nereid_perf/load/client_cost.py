"""Test whether figures say more of the client than of the server. Pure.

They do where the busiest worker was on a CPU, or waited for one, nearly all the time; and where
more than 1 % of requests were sent late while a worker was busy for a good part of the time: bursts
may be too much for a worker that has time on average. Requests that an almost idle worker sends
late say that the machine is noisy; they are counted, and their response times have the delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_perf.measurement import ClientCost

if TYPE_CHECKING:
    from collections.abc import Iterable

# From this share on, a worker's own queue shows in the latencies.
_BUSY: Final = 0.85
_DELAYED: Final = 0.01
# Below this share, late requests did not wait for the worker.
_BUSY_IF_DELAYED: Final = 0.25


def client_cost(
    workers: Iterable[tuple[float, float]], *, wall_s: float, requests: int, delayed: int
) -> ClientCost:
    """Return the cost of the client.

    workers: seconds of CPU time that each worker took, and seconds that it waited for a CPU.
    requests: number of all requests that were sent.
    """
    taken = list(workers)
    cpu_s = sum(cpu for cpu, _ in taken)
    busy = max((cpu for cpu, _ in taken), default=0.0) / wall_s
    # A worker on a machine without a free CPU is as late as one that is always busy.
    wanted = max((cpu + waited for cpu, waited in taken), default=0.0) / wall_s
    return ClientCost(
        cpu_us=cpu_s * 1e6 / max(1, requests),
        busy=busy,
        delayed=delayed,
        is_bottleneck=wanted >= _BUSY
        or (delayed > _DELAYED * requests and busy >= _BUSY_IF_DELAYED),
    )
