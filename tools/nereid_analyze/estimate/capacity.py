"""Predicts the rate that a candidate would reach, from its models' batch times.

The slowest model limits the rate. front_us is the server's time per request that no setting
shortens. If `sharing` is 0, instances do not slow each other down; if it is 1, all together are as
fast as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid_analyze.estimate.batch_times import BatchTimes
    from nereid_analyze.space.candidate import Candidate
    from nereid_analyze.space.defaults import ModelDefaults

_SHARING: Final = np.linspace(0.0, 1.0, 11)
# Usable share of the capacity with a latency target: near full capacity, queues are long.
_BUSY: Final = 0.85
_MIN_RATE: Final = 0.01


@dataclass(frozen=True)
class Capacity:
    """The capacity model; `times` has the batch times of each model that a request passes."""

    times: Mapping[str, BatchTimes]
    defaults: Mapping[str, ModelDefaults]
    target_us: float | None = None
    front_us: float = 0.0
    sharing: float = 0.5

    def rate(self, candidate: Candidate) -> float:
        """Return a candidate's predicted rate per second."""
        slowest = max(
            (self._request_us(model, candidate) for model in self.times), default=float("inf")
        )
        rate = 1e6 / (self.front_us + slowest)
        return max(rate * (_BUSY if self.target_us is not None else 1.0), _MIN_RATE)

    def fitted(self, measured: Sequence[tuple[Candidate, float]]) -> Capacity:
        """Return the model with front_us and sharing fitted to measured rates."""
        usable = [(candidate, rate) for candidate, rate in measured if rate > 0]
        if not usable:
            return self
        logs = np.log([rate for _, rate in usable])
        best, least = self, np.inf
        front_most = 1e6 / max(rate for _, rate in usable)
        for sharing in _SHARING:
            for front in np.linspace(0.0, front_most, 13):
                tried = Capacity(
                    self.times, self.defaults, self.target_us, float(front), float(sharing)
                )
                predicted = np.log([tried.rate(candidate) for candidate, _ in usable])
                # If the rates do not decide, prefer a sharing of 0.5.
                miss = float(((predicted - logs) ** 2).mean()) + 1e-3 * float((sharing - 0.5) ** 2)
                if miss < least:
                    best, least = tried, miss
        return best

    def _request_us(self, model: str, candidate: Candidate) -> float:
        times, default = self.times[model], self.defaults[model]
        values = candidate.values(model)
        instances = max(_number(values.get(INSTANCES), default.instances), 1)
        batch = max(_number(values.get(MAX_BATCH), default.max_batch), 1)
        delay_us = _number(values.get(DELAY), default.delay_us)
        slower = 1 + self.sharing * (instances - 1)
        rows = float(batch)
        if self.target_us is not None:
            rows = self._largest(batch, times, slower, delay_us)
        return default.weight * times.of(rows) * slower / instances / rows

    def _largest(self, batch: int, times: BatchTimes, slower: float, delay_us: float) -> float:
        """Return the largest batch size for which two consecutive batches fit within the target."""
        assert self.target_us is not None, "only asked with a target"
        left_us = (self.target_us / len(self.times) - delay_us) / 2 / slower
        if left_us <= times.of(1):
            # Not even single requests meet the target. A size below 1 ranks the candidate last.
            return max(0.1, left_us / max(times.of(1), 1e-9))
        return min(batch, (left_us - times.fixed_us) / max(times.row_us, 1e-9))


def filling_concurrency(candidate: Candidate, defaults: Mapping[str, ModelDefaults]) -> int:
    """Return how many requests fill two batches per instance: one executes, one is being filled."""
    most = 1
    for model, default in defaults.items():
        values = candidate.values(model)
        batch = max(_number(values.get(MAX_BATCH), default.max_batch), 1)
        instances = max(_number(values.get(INSTANCES), default.instances), 1)
        most = max(most, 2 * batch * instances)
    return most


def _number(value: object, default: int) -> int:
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else default
