"""Kubernetes' horizontal pod autoscaler (autoscaling/v2), and KEDA's scaling to zero.

The module does no I/O. It follows the documented algorithm:
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Within this of its target a metric changes nothing: the controller manager's default.
TOLERANCE = 0.1
# Interval at which the controller looks.
SYNC_S = 15.0


@dataclass(frozen=True)
class Metric:
    """An external metric and its target.

    value: `None` means no data. per_pod: true if the target is an AverageValue, false if it is a
    Value.
    """

    value: float | None
    target: float
    per_pod: bool = False


@dataclass(frozen=True)
class Policy:
    """Limit of a change within a period: a number of pods, or a percentage of all pods."""

    period_s: float
    pods: int = 0
    percent: float = 0.0


@dataclass(frozen=True)
class Rules:
    """Rules for scaling in one direction. The policy that allows the largest change counts."""

    window_s: float
    policies: tuple[Policy, ...]


# Rules of deploy/helm/nereid.
UP = Rules(0.0, (Policy(15.0, pods=4), Policy(15.0, percent=100.0)))
DOWN = Rules(300.0, (Policy(60.0, pods=1), Policy(60.0, percent=50.0)))


def desired_replicas(metrics: Sequence[Metric], replicas: int, ready: int) -> int | None:
    """Return the largest number that a metric asks for, or `None` if no metric has data.

    If some metrics lack data, the result is never less than the current number of replicas.
    """
    proposals = [
        _proposal(metric, replicas, ready) for metric in metrics if metric.value is not None
    ]
    if not proposals:
        return None
    proposal = max(proposals)
    return max(proposal, replicas) if len(proposals) < len(metrics) else proposal


def _proposal(metric: Metric, replicas: int, ready: int) -> int:
    assert metric.value is not None, "asked for without data"
    pods = replicas if metric.per_pod else 1
    ratio = metric.value / (metric.target * pods) if pods else math.inf
    if abs(ratio - 1) <= TOLERANCE:
        return replicas
    if metric.per_pod:
        return math.ceil(metric.value / metric.target)
    return math.ceil(ratio * ready)


@dataclass
class HorizontalAutoscaler:
    """Autoscaler of one Deployment. Call recommend() every SYNC_S seconds."""

    least: int
    most: int
    up: Rules = UP
    down: Rules = DOWN
    # Times with the desired numbers, and times with the changes of the Deployment.
    _desired: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def recommend(self, now_s: float, replicas: int, ready: int, metrics: Sequence[Metric]) -> int:
        """Return how many replicas there should be."""
        desired = desired_replicas(metrics, replicas, ready)
        if desired is None:
            return replicas
        self._desired.append((now_s, desired))
        stable = self._stabilised(now_s, replicas)
        chosen = min(max(stable, self.least), self.most)
        if chosen > replicas:
            chosen = min(chosen, self._limit(self.up, now_s, replicas, max))
        elif chosen < replicas:
            chosen = max(chosen, self._limit(self.down, now_s, replicas, min))
        if chosen != replicas:
            self._changes.append((now_s, chosen - replicas))
        return chosen

    def _stabilised(self, now_s: float, replicas: int) -> int:
        """Return the present number, unless all of the window's recommendations differ.

        A higher number needs recommendations that all wanted more, a lower one recommendations that
        all wanted fewer.
        """
        longest_s = max(self.up.window_s, self.down.window_s)
        self._desired = [
            recommendation
            for recommendation in self._desired
            if recommendation[0] > now_s - longest_s - SYNC_S
        ]
        least = min(self._within(self.up.window_s, now_s))
        most = max(self._within(self.down.window_s, now_s))
        return min(max(replicas, least), most)

    def _within(self, window_s: float, now_s: float) -> list[int]:
        return [desired for at_s, desired in self._desired if at_s >= now_s - window_s]

    def _limit(
        self, rules: Rules, now_s: float, replicas: int, most: Callable[[Sequence[int]], int]
    ) -> int:
        """Return how far the policies let it go; `most` is max for up, min for down."""
        sign = 1 if most is max else -1
        limits = [replicas]
        for policy in rules.policies:
            began = replicas - sum(
                by for at_s, by in self._changes if at_s > now_s - policy.period_s
            )
            change = policy.pods or math.ceil(began * policy.percent / 100)
            limits.append(began + sign * change)
        return most(limits)


@dataclass
class ZeroScaler:
    """KEDA's part: scales from zero to one if a trigger is active, and back after a cool-down.

    Call decide() at every polling interval. While there are replicas, the horizontal autoscaler
    decides about their number.
    """

    cooldown_s: float = 300.0
    _active_s: float | None = None

    def decide(self, now_s: float, replicas: int, *, active: bool) -> int:
        """Return how many replicas there should be."""
        if active or self._active_s is None:
            self._active_s = now_s
        if active:
            return max(1, replicas)
        if replicas and now_s - self._active_s >= self.cooldown_s:
            return 0
        return replicas
