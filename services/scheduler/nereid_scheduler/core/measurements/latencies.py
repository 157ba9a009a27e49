"""Histograms and summaries of request latencies, if --metrics-config asks for them."""

# layout: not compiled, has a constant tuple of floats

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nereid.core.wire.trace_context import TRACE_ID
from nereid.observability.metrics import FIRST_RESPONSE, SUMMARIES
from nereid.observability.metrics_page import Exemplar, Histogram, Quantiles, Summary

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

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

    def record_batch(self, entries: Collection[Entry], execution: Execution) -> None:
        """Record the latencies of entries that were executed together."""
        ended_ns = execution.finished_ns
        took_ms = [(ended_ns - entry.received_ns) / 1e6 for entry in entries]
        if self.first_response is not None:
            for latency_ms in took_ms:
                self.first_response.observe(latency_ms)
            self.first_response_ms += sum(took_ms)
        phases = self.phases
        if phases is not None:
            started_ns, count = execution.started_ns, len(took_ms)
            phases["request"].observe_all([latency_ms * 1000 for latency_ms in took_ms])
            queued = [(started_ns - entry.enqueued_ns) / 1000 for entry in entries]
            phases["queue"].observe_all(queued)
            phases["compute_input"].observe(execution.compute_input_ns / 1000, count)
            phases["compute_infer"].observe(execution.compute_infer_ns / 1000, count)
            phases["compute_output"].observe(execution.compute_output_ns / 1000, count)

    def record_phases(self, entry: Entry, execution: Execution, ended_ns: int) -> None:
        """Record the latencies of a decoupled model's entry that has ended."""
        phases = self.phases
        if phases is not None:
            phases["request"].observe((ended_ns - entry.received_ns) / 1000)
            phases["queue"].observe((execution.started_ns - entry.enqueued_ns) / 1000)
            phases["compute_input"].observe(execution.compute_input_ns / 1000)
            phases["compute_infer"].observe(execution.compute_infer_ns / 1000)
            phases["compute_output"].observe(execution.compute_output_ns / 1000)

    def record_cache_hit(self, entry: Entry, lookup_ns: int, now_ns: int) -> None:
        """Record an entry whose response was found in the cache."""
        self.record_first_response(entry, now_ns)
        self.cache_hit.observe(lookup_ns / 1000)

    def record_cache_miss(self, cost_ns: int) -> None:
        """Record a cache miss, with the time that lookup and insertion took together."""
        self.cache_miss.observe(cost_ns / 1000)

    def record_first_response(self, entry: Entry, now_ns: int) -> None:
        """Record the latency of a request's first response, in the histogram only."""
        if self.first_response is not None:
            took_ms = (now_ns - entry.received_ns) / 1e6
            self.first_response.observe(took_ms)
            self.first_response_ms += took_ms
            if entry.trace is not None:
                self.record_exemplar(entry, now_ns)

    def record_exemplar(self, entry: Entry, now_ns: int) -> None:
        """Add an exemplar if the request is traced; its first response must have been recorded."""
        if self.first_response is not None and entry.trace is not None:
            trace_id = entry.trace.context[TRACE_ID]
            took_ms = (now_ns - entry.received_ns) / 1e6
            self.first_response.set_exemplar(Exemplar(trace_id, took_ms, now_ns))
