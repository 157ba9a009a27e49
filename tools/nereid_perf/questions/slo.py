"""Service level objective: limits that a server has to keep, and how many requests are within.

A percentile is a promise to requests: p99=20ms says that of all that were sent 99 % ended well
within 20 ms. A failed request kept no limit, so a server cannot look better by failing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid_perf.distribution import count_within
from nereid_perf.questions.metrics import Unit, attempts, parse_metric, parse_quantity

if TYPE_CHECKING:
    from nereid_perf.measurement import Measurement
    from nereid_perf.questions.metrics import Metric


@dataclass(frozen=True, slots=True)
class Limit:
    """Upper limit of a metric."""

    metric: Metric
    most: float

    def is_kept(self, measurement: Measurement) -> bool:
        """Return whether the limit is kept.

        It is not if nothing was measured, except for the time between responses of requests with
        one response each.
        """
        metric = self.metric
        if metric.histogram is None or metric.share is None:
            value = metric.value(measurement)
            return value is not None and value <= self.most
        histogram = metric.histogram(measurement.latencies)
        total = histogram.get_total_count()
        if not self._is_between(measurement):
            total = attempts(measurement)
            if not total:
                return False
        needed: float = metric.share * total
        return count_within(histogram, self.most) >= needed

    def within(self, measurement: Measurement) -> int:
        """Return how many requests kept the limit; all, if it is no limit for single requests."""
        metric = self.metric
        if metric.histogram is None or metric.share is None or self._is_between(measurement):
            return measurement.requests
        return count_within(metric.histogram(measurement.latencies), self.most)

    def _is_between(self, measurement: Measurement) -> bool:
        histogram = self.metric.histogram
        latencies = measurement.latencies
        return bool(histogram is not None and histogram(latencies) is latencies.between)


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that are to be kept together."""

    text: str
    limits: tuple[Limit, ...]

    def is_met(self, measurement: Measurement) -> bool:
        """Return whether all limits are kept."""
        return all(limit.is_kept(measurement) for limit in self.limits)

    def goodput(self, measurement: Measurement) -> float:
        """Return the requests per second within all limits, at least.

        The figure is exact for one limit on requests. For several the histograms do not say which
        requests missed both, so each miss counts for another request. A limit of a mean, or of the
        time between responses, is for no single request.
        """
        missed = sum(measurement.requests - limit.within(measurement) for limit in self.limits)
        return max(0, measurement.requests - missed) / measurement.duration_s


def parse_slo(text: str) -> Slo:
    """Parse p99=20ms,ttft=50ms,errors=0.1%; raise ValueError if it is no SLO."""
    limits = []
    for part in text.split(","):
        name, equals, limit = part.strip().partition("=")
        if not equals:
            raise ValueError(f"'{part}': expected a metric and its limit, such as p99=20ms")
        metric = parse_metric(name.strip())
        if metric.unit is Unit.PER_SECOND:
            raise ValueError(f"'{name}' is what is searched for: limit latencies or errors")
        limits.append(Limit(metric, parse_quantity(limit, metric.unit)))
    return Slo(text, tuple(limits))
