"""Names of a measurement's figures in flags, and the units of limits on the figures.

rate, responses, tokens  per second
errors                   share of the requests that failed
p50, p99.9, avg, max     response time: from the intended time to the last response
service_p99, ...         service time: from the writing to the socket to the last response
ttft_p99, ...            time to the first response; ttft alone is its p99
itl_p99, ...             time between responses of one request; itl alone is its p99
cpu                      the load generator's CPU time per request
queue, compute_input, compute_infer, compute_output    the server's mean times for its first model
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid_perf.distribution import max_us, mean_us, percentile_us

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdrh.histogram import HdrHistogram

    from nereid_perf.measurement import Latencies, Measurement

_DISTRIBUTION: Final = re.compile(
    r"(?:(service|ttft|itl)_)?(?:p(\d{1,2}(?:\.\d{1,4})?|100)|(avg|max))"
)
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|ms|s|%|/s)?")
_US: Final = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_NAMES: Final = (
    "expected rate, responses, tokens, errors, p50, p99, avg, max, service_p99, ttft, itl, cpu,"
    " queue, compute_input, compute_infer or compute_output"
)


class Unit(enum.Enum):
    """The unit of a metric's values."""

    MICROSECONDS = "us"
    PER_SECOND = "/s"
    SHARE = "%"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a measurement; `value` returns `None` if the measurement does not have it."""

    name: str
    unit: Unit
    value: Callable[[Measurement], float | None]
    histogram: Callable[[Latencies], HdrHistogram] | None = None
    share: float | None = None

    def text(self, value: float) -> str:
        """Return a value as readable text."""
        if self.unit is Unit.SHARE:
            return f"{100 * value:.3g} %"
        return time_text(value) if self.unit is Unit.MICROSECONDS else rate_text(value)


def parse_metric(name: str) -> Metric:
    """Return the metric with a name; raise ValueError if there is no such metric."""
    match = _DISTRIBUTION.fullmatch({"ttft": "ttft_p99", "itl": "itl_p99"}.get(name, name))
    if match is not None:
        prefix, percentile, other = match.groups()
        return _of_distribution(name, _HISTOGRAMS[prefix], percentile, other)
    if name not in _PLAIN:
        raise ValueError(f"'{name}' is no metric: {_NAMES}")
    unit, value = _PLAIN[name]
    return Metric(name, unit, value)


def parse_quantity(text: str, unit: Unit) -> float:
    """Parse a limit on a metric; a time must have a unit. May raise ValueError."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no quantity: expected one such as 20ms, 1000 or 0.1%")
    value, suffix = float(match[1]), match[2] or ""
    if unit is Unit.MICROSECONDS:
        if suffix not in _US:
            raise ValueError(f"'{text}': a time needs a unit: {text}ms, or us, s, ns")
        return value * _US[suffix]
    if unit is Unit.SHARE:
        if suffix != "%":
            raise ValueError(f"'{text}': a share needs its unit: {text}%")
        return value / 100
    if suffix not in ("", "/s"):
        raise ValueError(f"'{text}': expected a number per second")
    return value


def attempts(measurement: Measurement) -> int:
    """Return the number of requests that the client did not cancel."""
    return measurement.requests + sum(measurement.failures.values())


def error_share(measurement: Measurement) -> float:
    """Return the share of failed requests, or 0 if nothing was sent."""
    return sum(measurement.failures.values()) / max(attempts(measurement), 1)


def time_text(us: float) -> str:
    """Return a time such as 12.3 ms."""
    for least, name in ((1e6, "s"), (1e3, "ms")):
        if us >= least:
            return f"{_three_digits(us / least)} {name}"
    return f"{_three_digits(us)} us"


def rate_text(rate: float) -> str:
    """Return a rate such as 1234/s."""
    return f"{_three_digits(rate)}/s"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def _of_distribution(
    name: str,
    histogram: Callable[[Latencies], HdrHistogram],
    percentile: str | None,
    other: str | None,
) -> Metric:
    if percentile is not None:
        rank = float(percentile)
        if rank == 0:
            raise ValueError(f"'{name}': expected a percentile above 0")

        def value(measurement: Measurement) -> float | None:
            found = histogram(measurement.latencies)
            return percentile_us(found, rank) if found.get_total_count() else None

        return Metric(name, Unit.MICROSECONDS, value, histogram, rank / 100)

    def whole(measurement: Measurement) -> float | None:
        found = histogram(measurement.latencies)
        if not found.get_total_count():
            return None
        return max_us(found) if other == "max" else mean_us(found)

    share = 1.0 if other == "max" else None
    return Metric(name, Unit.MICROSECONDS, whole, histogram if share else None, share)


def _of_server(field: str) -> Callable[[Measurement], float | None]:
    def value(measurement: Measurement) -> float | None:
        if not measurement.server:
            return None
        figure: float | None = getattr(measurement.server[0], field)
        return figure

    return value


_HISTOGRAMS: Final[Mapping[str | None, Callable[[Latencies], HdrHistogram]]] = {
    None: lambda latencies: latencies.response,
    "service": lambda latencies: latencies.service,
    "ttft": lambda latencies: latencies.first,
    "itl": lambda latencies: latencies.between,
}
_PLAIN: Final[Mapping[str, tuple[Unit, Callable[[Measurement], float | None]]]] = {
    "rate": (Unit.PER_SECOND, lambda measurement: measurement.requests_per_s),
    "responses": (
        Unit.PER_SECOND,
        lambda measurement: measurement.responses / measurement.duration_s,
    ),
    "tokens": (Unit.PER_SECOND, lambda measurement: measurement.tokens_per_s),
    "errors": (Unit.SHARE, error_share),
    "cpu": (Unit.MICROSECONDS, lambda measurement: measurement.client.cpu_us),
    "queue": (Unit.MICROSECONDS, _of_server("queue_us")),
    "compute_input": (Unit.MICROSECONDS, _of_server("compute_input_us")),
    "compute_infer": (Unit.MICROSECONDS, _of_server("compute_infer_us")),
    "compute_output": (Unit.MICROSECONDS, _of_server("compute_output_us")),
}
