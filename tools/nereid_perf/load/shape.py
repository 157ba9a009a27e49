"""Turns the number of a level (a rate, a concurrency) into the schedule of one worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid_perf.load.arrivals import (
    Bursts,
    Distribution,
    Profile,
    Ramp,
    Steady,
    arrivals,
    every_nth,
    repeated_intervals,
)
from nereid_perf.load.concurrency import Constant, Periodic, share_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_perf.load.arrivals import Times
    from nereid_perf.measurement import LoadLevel


@dataclass(frozen=True, slots=True)
class LoadShape:
    """Shape of the load at any level; which fields count depends on the level's kind.

    "rate": `distribution` is of the gaps. The rate grows from ramp_from in ramp_s seconds. Bursts
    of burst_s seconds begin every burst_period_s seconds.
    "trace": intervals_ns are the gaps, repeated; if empty, each request has its own time.
    "concurrency": with requests_per_step, the concurrency grows from periodic_from by periodic_step
    after every requests_per_step requests.
    """

    distribution: Distribution = "constant"
    gamma_variation: float = 1.0
    ramp_from: float = 0.0
    ramp_s: float = 0.0
    burst_rate: float = 0.0
    burst_s: float = 0.0
    burst_period_s: float = 0.0
    intervals_ns: tuple[int, ...] = ()
    periodic_from: int = 1
    periodic_step: int = 1
    requests_per_step: int = 0


def arrivals_of(
    level: LoadLevel, shape: LoadShape, *, seed: int, worker: int, workers: int
) -> Iterator[Times] | None:
    """Yield a worker's times in ns; `None` for a closed loop, or a trace with its own times."""
    if level.kind == "concurrency":
        return None
    if level.kind == "trace":
        if not shape.intervals_ns:
            return None
        blocks = repeated_intervals(shape.intervals_ns)
    else:
        blocks = arrivals(
            _profile(level.value, shape),
            shape.distribution,
            seed=seed,
            gamma_variation=shape.gamma_variation,
        )
    return every_nth(blocks, worker, workers)


def concurrency_of(
    level: LoadLevel, shape: LoadShape, *, worker: int, workers: int
) -> Constant | Periodic:
    """Return the schedule of how many requests one worker has in flight in a closed loop."""
    most = share_of(int(level.value), worker, workers)
    if not shape.requests_per_step:
        return Constant(most)
    return Periodic(
        max(1, share_of(shape.periodic_from, worker, workers)),
        most,
        max(1, share_of(shape.periodic_step, worker, workers)),
        max(1, share_of(shape.requests_per_step, worker, workers)),
    )


def _profile(rate: float, shape: LoadShape) -> Profile:
    if shape.burst_rate:
        return Bursts(rate, shape.burst_rate, shape.burst_s, shape.burst_period_s)
    if shape.ramp_s:
        return Ramp(shape.ramp_from, rate, shape.ramp_s)
    return Steady(rate)
