"""Histograms and summaries of request latencies, if --metrics-config asks for them."""

# layout: not compiled, has a constant tuple of floats

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nereid.core.wire.trace_context import TRACE_ID
from nereid.observability.metrics import FIRST_RESPONSE, SUMMARIES
from nereid.observability.metrics_page import Exemplar, Histogram, Quantiles, Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.model_config import ModelConfig
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.execution import Execution

# Triton's default bounds.
DEFAULT_BOUNDS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)
_SETTINGS: Final = ("counter_latencies", "histogram_latencies", "summary_latencies")
_EXPECTED: Final = (
    "expected counter_latencies=, histogram_latencies= or summary_latencies=true or false,"
    " or summary_quantiles=<quantile>:<error>,..."
)


@dataclass(frozen=True)
class MetricsConfig:
    """Settings of --metrics-config; the defaults are Triton's."""

    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    summary_quantiles: Quantiles = (0.5, 0.9, 0.95, 0.99, 0.999)

    def latencies_of(self, config: ModelConfig) -> Latencies | None:
        """Return a Latencies for a version of this model; `None` if no latencies are recorded."""
        if not (self.histogram_latencies or self.summary_latencies):
            return None
        bounds = _bounds_ms(config) if self.histogram_latencies else None
        return Latencies(bounds, summaries=self.summary_latencies)


def setting(text: str) -> str:
    """Check one value of --metrics-config, and return it unchanged."""
    parse_setting(text)
    return text


def parse_metrics_config(settings: Iterable[str]) -> MetricsConfig:
    """Return the settings from all values of --metrics-config. The last value of a name counts."""
    fields: dict[str, Any] = dict(map(parse_setting, settings))
    return MetricsConfig(**fields)


def parse_setting(text: str) -> tuple[str, bool | Quantiles]:
    """Parse one name=value of --metrics-config; raise ValueError if either is unknown."""
    name, equals, value = text.partition("=")
    if equals and name in _SETTINGS and value.lower() in ("true", "false", "1", "0"):
        return name, value.lower() in ("true", "1")
    if equals and name == "summary_quantiles":
        # Quantiles are exact for their time window, so the allowed errors are not used.
        try:
            quantiles = tuple(float(pair.partition(":")[0]) for pair in value.split(","))
        except ValueError:
            raise ValueError(_EXPECTED) from None
        if all(0 <= quantile <= 1 for quantile in quantiles):
            return name, quantiles
    raise ValueError(_EXPECTED)


def _bounds_ms(config: ModelConfig) -> Sequence[float]:
    for control in config.proto.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE.name:
            return sorted(set(control.histogram_options.buckets)) or DEFAULT_BOUNDS_MS
    return DEFAULT_BOUNDS_MS


class Latencies:
    """Latencies of one model version: summaries in microseconds, a histogram in milliseconds."""

    def __init__(self, bounds_ms: Sequence[float] | None, *, summaries: bool) -> None:
        self.first_response = None if bounds_ms is None else Histogram(bounds_ms)
        self.first_response_ms = 0.0
        self.phases = {phase: Summary() for phase in SUMMARIES} if summaries else None
        self.cache_hit = Summary()
        self.cache_miss = Summary()

    def record_success(self, entry: Entry, execution: Execution, ended_ns: int) -> None:
        """Record the latencies of an executed request that has had its last response."""
        phases = self.phases
        if phases is not None:
            phases["request"].observe((ended_ns - entry.received_ns) / 1000)
            phases["queue"].observe((execution.started_ns - entry.enqueued_ns) / 1000)
            phases["compute_input"].observe(execution.compute_input_ns / 1000)
            phases["compute_infer"].observe(execution.compute_infer_ns / 1000)
            phases["compute_output"].observe(execution.compute_output_ns / 1000)

    def record_cache_hit(self, entry: Entry, now_ns: int) -> None:
        """Record a request whose response was found in the cache."""
        self.record_first_response(entry, now_ns)
        self.cache_hit.observe((now_ns - entry.received_ns) / 1000)

    def record_cache_miss(self, cost_ns: int) -> None:
        """Record a cache miss, with the time that lookup and insertion took together."""
        self.cache_miss.observe(cost_ns / 1000)

    def record_first_response(self, entry: Entry, now_ns: int) -> None:
        """Record the latency of a request's first response; leave an exemplar of a sampled one."""
        if self.first_response is not None:
            took_ms = (now_ns - entry.received_ns) / 1e6
            self.first_response.observe(took_ms)
            self.first_response_ms += took_ms
            if entry.trace is not None:
                trace_id = entry.trace.context[TRACE_ID]
                self.first_response.set_exemplar(Exemplar(trace_id, took_ms, now_ns))
