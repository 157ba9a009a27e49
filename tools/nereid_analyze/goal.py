"""The goal of a search: objectives and constraints, with Model Analyzer's names for metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nereid_perf.distribution import mean_us, percentile_us
from nereid_perf.questions.slo import Slo, parse_slo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdrh.histogram import HdrHistogram

    from nereid_perf.measurement import Measurement

THROUGHPUT: Final = "perf_throughput"
_MB: Final = 1e6
_NO_RATE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a measurement. header: Model Analyzer's column. larger: larger is better."""

    name: str
    header: str
    larger: bool
    value: Callable[[Measurement], float | None]


def _latency(name: str) -> Callable[[HdrHistogram], float]:
    if name == "avg":
        return mean_us
    if name in ("min", "max"):
        return lambda found: float(getattr(found, f"get_{name}_value")()) / 1000
    rank = float(name[1:])
    return lambda found: percentile_us(found, rank)


def _time(kind: str, name: str) -> Callable[[Measurement], float | None]:
    figure = _latency(name)

    def value(measurement: Measurement) -> float | None:
        histogram = getattr(measurement.latencies, kind)
        # In ms, as in Model Analyzer.
        return figure(histogram) / 1000 if histogram.get_total_count() else None

    return value


def _gauge(mean_of: tuple[str, ...], scale: float = 1.0) -> Callable[[Measurement], float | None]:
    def value(measurement: Measurement) -> float | None:
        for name in mean_of:
            values = [
                mean
                for gauge, (mean, _) in measurement.gauges.items()
                if gauge.partition("{")[0] == name
            ]
            if values:
                return sum(values) / scale
        return None

    return value


def _difference(
    whole: Callable[[Measurement], float | None], part: Callable[[Measurement], float | None]
) -> Callable[[Measurement], float | None]:
    def value(measurement: Measurement) -> float | None:
        total, used = whole(measurement), part(measurement)
        return None if total is None or used is None else total - used

    return value


def _phase(name: str) -> Callable[[Measurement], float | None]:
    def value(measurement: Measurement) -> float | None:
        times_us = [getattr(split, name) for split in measurement.server[:1]]
        return times_us[0] / 1000 if times_us and times_us[0] is not None else None

    return value


def _titled(name: str) -> str:
    return name if name.startswith("p") else name.capitalize()


_RANKS: Final = ("avg", "min", "max", "p25", "p50", "p75", "p90", "p95", "p99")
_GPU_USED: Final = _gauge(("nv_gpu_memory_used_bytes",), _MB)
_RAM_USED: Final = _gauge(
    ("process_resident_memory_bytes", "server_resident_memory_bytes", "nv_cpu_memory_used_bytes"),
    _MB,
)

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric(THROUGHPUT, "Throughput (infer/sec)", True, lambda found: found.requests_per_s),
        Metric(
            "output_token_throughput",
            "Output Token Throughput (infer/sec)",
            True,
            lambda found: found.responses / found.duration_s,
        ),
        *(
            Metric(
                f"perf_latency_{rank}",
                f"{_titled(rank)} Latency (ms)",
                False,
                _time("response", rank),
            )
            for rank in ("avg", "p50", "p90", "p95", "p99")
        ),
        *(
            Metric(
                f"{name}_{rank}",
                f"{_titled(rank)} {name.replace('_', ' ').title()} (ms)",
                False,
                _time(kind, rank),
            )
            for name, kind in (("time_to_first_token", "first"), ("inter_token_latency", "between"))
            for rank in _RANKS
        ),
        Metric("perf_server_queue", "Server Queue time (ms)", False, _phase("queue_us")),
        Metric(
            "perf_server_compute_input",
            "Server Compute Input time (ms)",
            False,
            _phase("compute_input_us"),
        ),
        Metric(
            "perf_server_compute_infer",
            "Server Compute Infer time (ms)",
            False,
            _phase("compute_infer_us"),
        ),
        Metric(
            "perf_server_compute_output",
            "Server Compute Output time (ms)",
            False,
            _phase("compute_output_us"),
        ),
        Metric("gpu_used_memory", "GPU Memory Usage (MB)", False, _GPU_USED),
        Metric(
            "gpu_free_memory",
            "GPU Memory Available (MB)",
            True,
            _difference(_gauge(("nv_gpu_memory_total_bytes",), _MB), _GPU_USED),
        ),
        Metric(
            "gpu_utilization",
            "GPU Utilization (%)",
            True,
            _gauge(("nv_gpu_utilization",), 0.01),
        ),
        Metric("gpu_power_usage", "GPU Power Usage (W)", False, _gauge(("nv_gpu_power_usage",))),
        Metric("cpu_used_ram", "RAM Usage (MB)", False, _RAM_USED),
        Metric(
            "cpu_free_ram",
            "RAM Available (MB)",
            True,
            _difference(_gauge(("nv_cpu_memory_total_bytes",), _MB), _RAM_USED),
        ),
    )
}
# Key: old name. Value: present name.
ALIASES: Final[Mapping[str, str]] = {"perf_latency": "perf_latency_p99"}
_LATENCIES: Final[Mapping[str, str]] = {
    **{f"perf_latency_{rank}": rank for rank in ("avg", "p50", "p90", "p95", "p99")},
    **{
        f"time_to_first_token_{rank}": f"ttft_{rank}"
        for rank in ("avg", "max", "p25", "p50", "p75", "p90", "p95", "p99")
    },
    **{
        f"inter_token_latency_{rank}": f"itl_{rank}"
        for rank in ("avg", "max", "p25", "p50", "p75", "p90", "p95", "p99")
    },
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """Bounds of a metric, in the unit of its column; `None` means no bound."""

    metric: str
    least: float | None = None
    most: float | None = None

    def is_kept(self, measurement: Measurement) -> bool:
        """Return whether the bounds are kept; False if the measurement does not have the metric."""
        value = METRICS[self.metric].value(measurement)
        if value is None:
            return False
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    @property
    def text(self) -> str:
        """The bounds as text."""
        low = "" if self.least is None else f"{self.metric} >= {self.least:g}"
        high = "" if self.most is None else f"{self.metric} <= {self.most:g}"
        return " and ".join(filter(None, (low, high)))


@dataclass(frozen=True)
class Goal:
    """Objectives (metrics with weights), and constraints, which must all be kept."""

    objectives: Mapping[str, float] = field(default_factory=lambda: {THROUGHPUT: 10.0})
    constraints: tuple[Constraint, ...] = ()

    @property
    def slo(self) -> Slo | None:
        """The limits of latencies as an SLO for the rate search; `None` if there are no limits."""
        limits = [
            f"{_LATENCIES[constraint.metric]}={constraint.most:g}ms"
            for constraint in self.constraints
            if constraint.metric in _LATENCIES and constraint.most is not None
        ]
        return parse_slo(",".join(limits)) if limits else None

    @property
    def limited_latency(self) -> str:
        """The first latency that has a limit, or else p99."""
        limited = [each.metric for each in self.constraints if each.metric in _LATENCIES]
        return limited[0] if limited else "perf_latency_p99"

    @property
    def target_us(self) -> float | None:
        """The tightest limit of a response time, in us; `None` if there is no limit."""
        limits = [
            constraint.most * 1000
            for constraint in self.constraints
            if constraint.metric.startswith("perf_latency") and constraint.most is not None
        ]
        return min(limits, default=None)

    @property
    def is_throughput(self) -> bool:
        """True if no other objective has a larger weight than the throughput."""
        return self.objectives.get(THROUGHPUT, 0) >= max(self.objectives.values())

    def is_met(self, measurement: Measurement) -> bool:
        """Return whether all constraints are kept."""
        return all(constraint.is_kept(measurement) for constraint in self.constraints)

    def score(self, measurement: Measurement, baseline: Measurement) -> float:
        """Return how much better than the baseline a measurement is: 0.1 means about 10 % better.

        The score is a weighted mean of log ratios. A metric that is missing does not count; a rate
        of 0 counts as a very low one, so that no candidate is as good as another beside it.
        """
        total = 0.0
        for name, weight in self.objectives.items():
            metric = METRICS[name]
            a, b = metric.value(baseline), metric.value(measurement)
            if name == THROUGHPUT:
                a, b = max(a or 0, _NO_RATE), max(b or 0, _NO_RATE)
            if a and b and a > 0 and b > 0:
                ratio = math.log(b / a)
                total += weight * (ratio if metric.larger else -ratio)
        return total / sum(self.objectives.values())
