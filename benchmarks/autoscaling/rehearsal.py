"""Rehearsal of one load under one way of scaling."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.autoscaling.cluster import Cluster
from benchmarks.autoscaling.horizontal_autoscaler import (
    SYNC_S,
    HorizontalAutoscaler,
    Metric,
    ZeroScaler,
)
from benchmarks.autoscaling.load import arrivals
from benchmarks.autoscaling.rules import Recorded, RuleWindow

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from benchmarks.autoscaling.load import Rate

# Intervals of Prometheus' scrapes and evaluations. KEDA polls more often than the autoscaler looks.
_SCRAPE_S = 15.0
_POLL_S = 5.0
_STEPS_A_MINUTE = round(60 / _SCRAPE_S)
# The clocks do not agree: each begins a while after the one that it reads.
_LAG_S = 4.0


@dataclass(frozen=True)
class Targets:
    """Targets of the metrics; 0 means that the metric is not used.

    The targets queue_time_us and busy_ratio are of type Value, demand is of type AverageValue.
    """

    queue_time_us: float = 0.0
    busy_ratio: float = 0.0
    demand: float = 0.0

    def metrics(self, recorded: Recorded) -> list[Metric]:
        """Return the metrics that the autoscaler gets."""
        found = [
            Metric(recorded.queue_time_us, self.queue_time_us),
            Metric(recorded.busy_ratio, self.busy_ratio),
            Metric(recorded.demand, self.demand, per_pod=True),
        ]
        return [metric for metric in found if metric.target]


@dataclass(frozen=True)
class Scaling:
    """Way of scaling.

    targets: `None` means that there are always `most` replicas. least: minimum number of replicas;
    with 0, KEDA scales to zero.
    """

    name: str
    targets: Targets | None
    least: int
    most: int


@dataclass(frozen=True)
class Step:
    """Observation at one time; `pod_s`: seconds that all pods have run since the start."""

    time_s: float
    rate: float
    replicas: int
    ready: int
    queue_time_us: float
    pod_s: float


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run; `latencies_s`: latencies of all requests, in order."""

    scaling: Scaling
    steps: Sequence[Step]
    latencies_s: Sequence[float]
    failures: Sequence[str]
    pod_s: float
    # Number of changes of the replicas.
    changes: int

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as a document."""
        ordered = sorted(self.latencies_s)
        last = len(ordered) - 1
        return {
            "requests": len(ordered),
            "failures": len(self.failures),
            "p50_s": round(ordered[last // 2], 3),
            "p99_s": round(ordered[int(0.99 * last)], 3),
            "longest_s": round(ordered[last], 3),
            "pod_hours": round(self.pod_s / 3600, 3),
            "most_replicas": max(step.replicas for step in self.steps),
            "changes": self.changes,
            "series": self._series(),
        }

    def _series(self) -> dict[str, list[float]]:
        """Return the plot's series, once a minute."""
        steps = self.steps[::_STEPS_A_MINUTE]
        return {
            "minutes": [round(step.time_s / 60, 2) for step in steps],
            "rate": [round(step.rate, 3) for step in steps],
            "replicas": [step.replicas for step in steps],
            "queue_time_s": [round(step.queue_time_us / 1e6, 4) for step in steps],
            "pod_hours": [round(step.pod_s / 3600, 3) for step in steps],
        }


async def rehearse(
    rate: Rate, until_s: float, scaling: Scaling, *, start_s: float, execution_s: float
) -> Outcome:
    """Offer the load and scale by the scraped metrics. Then complete pending requests.

    start_s: how long a pod takes to start. execution_s: execution time of one request, which varies
    by up to 10 %.
    """
    cluster = Cluster(start_s, (0.9 * execution_s, 1.1 * execution_s))
    run = _Run(cluster, scaling, rate)
    cluster.scale(scaling.most if scaling.targets is None else max(1, scaling.least))
    # The load begins when the first pods have started.
    await asyncio.sleep(start_s + 1)
    began_s = cluster.now_s
    cluster.offer(began_s + time_s for time_s in arrivals(rate, until_s, random.Random(2)))
    work: list[Coroutine[Any, Any, None]] = [run.scrape(), run.observe(began_s)]
    if scaling.targets is not None:
        work.append(run.scale(scaling.targets))
        if not scaling.least:
            work.append(run.poll())
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    await asyncio.sleep(until_s)
    await cluster.drain()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pod_s, changes = cluster.pod_s, run.changes
    latencies_s = [took_s for _, took_s in cluster.responses]
    return Outcome(scaling, run.steps, latencies_s, cluster.failures, pod_s, changes)


class _Run:
    def __init__(self, cluster: Cluster, scaling: Scaling, rate: Rate) -> None:
        self.steps: list[Step] = []
        self.changes = 0
        self._cluster = cluster
        self._rate = rate
        self._window = RuleWindow()
        self._recorded = Recorded(None, 0.0, None)
        self._autoscaler = HorizontalAutoscaler(max(1, scaling.least), scaling.most)
        self._zero_scaler = ZeroScaler()

    async def scrape(self) -> None:
        """Scrape as Prometheus does: the rules are evaluated some time after each scrape."""
        while True:
            self._window.scrape(self._cluster.now_s, self._cluster.page())
            await asyncio.sleep(_LAG_S)
            self._recorded = self._window.evaluate(self._cluster.now_s)
            await asyncio.sleep(_SCRAPE_S - _LAG_S)

    async def scale(self, targets: Targets) -> None:
        """Scale as the horizontal autoscaler does, from the recorded metrics."""
        await asyncio.sleep(2 * _LAG_S)
        while True:
            cluster = self._cluster
            if cluster.replicas:
                metrics = targets.metrics(self._recorded)
                chosen = self._autoscaler.recommend(
                    cluster.now_s, cluster.replicas, cluster.ready, metrics
                )
                self._apply(chosen)
            await asyncio.sleep(SYNC_S)

    async def poll(self) -> None:
        """Poll the recorded metrics as KEDA does, and scale to zero and back."""
        while True:
            cluster = self._cluster
            active = self._recorded.demand > 0
            self._apply(self._zero_scaler.decide(cluster.now_s, cluster.replicas, active=active))
            await asyncio.sleep(_POLL_S)

    async def observe(self, began_s: float) -> None:
        """Record a Step at regular intervals."""
        while True:
            cluster, time_s = self._cluster, self._cluster.now_s - began_s
            queue_time_us = self._recorded.queue_time_us or 0.0
            self.steps.append(
                Step(
                    time_s,
                    self._rate(time_s),
                    cluster.replicas,
                    cluster.ready,
                    queue_time_us,
                    cluster.pod_s,
                )
            )
            await asyncio.sleep(_SCRAPE_S)

    def _apply(self, replicas: int) -> None:
        if replicas != self._cluster.replicas:
            self.changes += 1
            self._cluster.scale(replicas)
