"""Service level objectives: limits that a server must keep, and goodput within them.

Percentiles are of all sent requests. A failed request keeps no limit: failing does not help.
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
    """An upper limit of a metric."""

    metric: Metric
    most: float

    def is_kept(self, measurement: Measurement) -> bool:
        """Return whether the limit is kept; it is not if nothing was measured.

        A limit on the time between responses is kept if each request had only one response.
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
        """Return how many requests kept the limit: all if the limit is not on single requests."""
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
    """Limits that must all be kept."""

    text: str
    limits: tuple[Limit, ...]

    def is_met(self, measurement: Measurement) -> bool:
        """Return whether all limits are kept."""
        return all(limit.is_kept(measurement) for limit in self.limits)

    def goodput(self, measurement: Measurement) -> float:
        """Return a lower bound of the requests per second that kept all limits.

        It is exact for one limit on single requests. With several, each miss counts as a different
        request. Limits on a mean, or on the time between responses, are not on single requests.
        """
        missed = sum(measurement.requests - limit.within(measurement) for limit in self.limits)
        return max(0, measurement.requests - missed) / measurement.duration_s


def parse_slo(text: str) -> Slo:
    """Parse p99=20ms,ttft=50ms,errors=0.1%; raise ValueError if the text is not an SLO."""
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
