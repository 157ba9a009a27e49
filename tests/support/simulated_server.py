"""A server whose rates and latencies follow from a formula, with noise: for searches of settings.

What it does is not what the searches assume: batches cost less than their rows, instances share
cores by their number, waiting for others pays only where batches are not full anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nereid_analyze.search.trial import CandidateError, Trial
from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, Candidate, Setting
from nereid_analyze.space.defaults import ModelDefaults
from nereid_analyze.space.space import Space
from nereid_perf.measurement import ClientCost, Latencies, LoadLevel, Measurement, ServerSplit
from nereid_perf.windows.histograms import histogram_of

THREADS = "parameters.intra_op_thread_count"
_CLIENT = ClientCost(cpu_us=20, busy=0.2, delayed=0, is_bottleneck=False)


@dataclass(frozen=True)
class SimulatedModel:
    """fixed_us, row_us, power: of a batch's time, fixed + row * b ** power. threaded: the share of
    it that several threads divide. fill: by how much a delay makes batches fuller.
    """

    fixed_us: float
    row_us: float
    power: float = 1.0
    threaded: float = 0.0
    fill: float = 0.0
    most_batch: int = 128


@dataclass
class SimulatedServer:
    """measure() counts what it is asked for. front_us: of the server's time for any request."""

    models: Mapping[str, SimulatedModel]
    settings: tuple[Setting, ...]
    cores: float = 4.0
    front_us: float = 20.0
    noise: float = 0.02
    seed: int = 0
    target: str = ""
    measured: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    @property
    def space(self) -> Space:
        return Space(self.settings)

    @property
    def defaults(self) -> dict[str, ModelDefaults]:
        return {name: ModelDefaults(1, 8, 0) for name in self.models}

    # --- the formula

    def batch_us(self, name: str, candidate: Candidate, batch: float) -> float:
        """Return the time of a batch, with what all busy instances cost each other."""
        model = self.models[name]
        values = candidate.values(name)
        threads = int(values.get(THREADS, 1))  # type: ignore[arg-type]
        instances = int(values.get(INSTANCES, 1))  # type: ignore[arg-type]
        whole = model.fixed_us + model.row_us * float(batch**model.power)
        speed = 1 / (1 - model.threaded + model.threaded / threads)
        # Busy cores beyond those that there are slow all down.
        wanted = sum(
            int(candidate.value(each, INSTANCES, 1))  # type: ignore[arg-type]
            * int(candidate.value(each, THREADS, 1)) ** 0.8  # type: ignore[arg-type]
            for each in self.models
        )
        slower = max(1.0, wanted / self.cores) * (1 + 0.02 * instances)
        return whole / speed * slower

    def capacity(self, candidate: Candidate, in_flight: float = math.inf) -> float:
        """The highest rate, with so many requests in flight."""
        slowest = 0.0
        for name in self.models:
            values = candidate.values(name)
            instances = int(values.get(INSTANCES, 1))  # type: ignore[arg-type]
            batch = float(values.get(MAX_BATCH, 8))  # type: ignore[arg-type]
            delay = float(values.get(DELAY, 0))  # type: ignore[arg-type]
            fill = 0.8 + 0.2 * min(1.0, self.models[name].fill * delay / 1000)
            batch = max(1.0, min(batch * fill, in_flight / instances))
            slowest = max(slowest, self.batch_us(name, candidate, batch) / instances / batch)
        return 1e6 / (self.front_us + slowest)

    def p99_us(self, candidate: Candidate, rate: float) -> float:
        """Return the p99 of an open load below the capacity."""
        load = rate / self.capacity(candidate)
        if load >= 1:
            return 1e6
        total = 200.0
        for name in self.models:
            values = candidate.values(name)
            most = float(values.get(MAX_BATCH, 8))  # type: ignore[arg-type]
            delay = float(values.get(DELAY, 0))  # type: ignore[arg-type]
            batch = max(1.0, most * load)
            us = self.batch_us(name, candidate, batch)
            total += delay + 2 * us + us * load / (1 - load)
        return total

    def best_rate(self, candidate: Candidate, target_us: float | None) -> float:
        """Without noise: what an endless search would find."""
        if target_us is None:
            return self.capacity(candidate)
        low, high = 0.0, self.capacity(candidate)
        for _ in range(40):
            middle = (low + high) / 2
            if self.p99_us(candidate, middle) <= target_us:
                low = middle
            else:
                high = middle
        return low

    # --- what a search sees

    def measure(self, trial: Trial) -> Measurement:
        """Raises CandidateError for batches that the model cannot have."""
        self.measured.append(trial)
        candidate = trial.candidate
        for name, model in self.models.items():
            if int(candidate.value(name, MAX_BATCH, 8)) > model.most_batch:  # type: ignore[arg-type]
                raise CandidateError("out of memory")
        # Short windows are noisier.
        sigma = self.noise / math.sqrt(trial.seconds)
        wobble = math.exp(self._random.normal(0, sigma))
        if trial.level.kind == "rate":
            rate = min(trial.level.value, self.capacity(candidate) * wobble)
            p99 = self.p99_us(candidate, trial.level.value / wobble)
        else:
            in_flight = trial.level.value * trial.batch_size
            once = sum(
                self.batch_us(name, candidate, max(1.0, trial.batch_size)) for name in self.models
            )
            rate = wobble * min(self.capacity(candidate, in_flight), in_flight * 1e6 / (200 + once))
            rate /= trial.batch_size
            p99 = 1.5e6 * trial.level.value / rate
        return self._measurement(trial, rate, p99)

    def _measurement(self, trial: Trial, rate: float, p99_us: float) -> Measurement:
        requests = max(1, round(rate * trial.seconds))
        shares = (np.arange(requests) + 0.5) / requests
        # Exponential above a base, so that the 99th percentile is what it is to be.
        times = p99_us * (0.4 + 0.6 * -np.log1p(-shares) / math.log(100))
        values = (times * 1000).astype(np.int64)
        empty = np.empty(0, np.int64)
        response = histogram_of(values)
        splits = tuple(
            ServerSplit(
                name,
                "1",
                requests,
                requests,
                10.0,
                0.0,
                self.batch_us(name, trial.candidate, trial.batch_size)
                * math.exp(self._random.normal(0, self.noise)),
                0.0,
            )
            for name in self.models
        )
        return Measurement(
            level=trial.level,
            duration_s=trial.seconds,
            requests=requests,
            responses=requests,
            failures={},
            cancelled=0,
            is_stable=True,
            windows=1,
            latencies=Latencies(response, response, response, histogram_of(empty)),
            client=_CLIENT,
            server=splits,
        )


def settings_of(
    model: str,
    instances: int = 4,
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64),
    delays: tuple[int, ...] = (0, 500, 2000),
    threads: tuple[int, ...] = (),
) -> tuple[Setting, ...]:
    """Return the settings of one model."""
    found = [
        Setting(model, INSTANCES, tuple(range(1, instances + 1)), 1),
        Setting(model, MAX_BATCH, batches, 8),
        Setting(model, DELAY, delays, 0),
    ]
    if threads:
        found.append(Setting(model, THREADS, threads, 1))
    return tuple(found)


def concurrency(value: int) -> LoadLevel:
    return LoadLevel("concurrency", value)
