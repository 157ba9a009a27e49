"""The result of one level of load: merged figures of the workers, and the server's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdrh.histogram import HdrHistogram


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A level of load: "concurrency" (in flight), "rate" (per second) or "trace" (value 1)."""

    kind: str
    value: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Histograms of latencies, in ns.

    response: from the intended time to the last response. service: from the write to the socket to
    the last response; in a closed loop the same. first: from the intended time to the first
    response. between: from one response to the next.
    """

    response: HdrHistogram
    service: HdrHistogram
    first: HdrHistogram
    between: HdrHistogram


@dataclass(frozen=True, slots=True)
class ServerSplit:
    """Mean times of one model's requests in us; `None` means not reported.

    Times of the cache are per hit and per miss.
    """

    model: str
    version: str
    requests: int
    executions: int
    queue_us: float | None
    compute_input_us: float | None
    compute_infer_us: float | None
    compute_output_us: float | None
    cache_hits: int = 0
    cache_misses: int = 0
    total_us: float | None = None
    cache_hit_us: float | None = None
    cache_miss_us: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseTiming:
    """A phase in the responses' Server-Timing, or the service time that no phase covers.

    mean_us: over all requests with Server-Timing, so that means add up. p99_us: over requests with
    this phase.
    """

    requests: int
    mean_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class ClientCost:
    """The cost of the load generator; cpu_us is per request.

    busy: largest share of a CPU that a worker used. delayed: requests sent over 1 ms late, although
    they did not wait for the server.
    """

    cpu_us: float
    busy: float
    delayed: int
    is_bottleneck: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one level of load on one server; `failures` counts requests by error."""

    level: LoadLevel
    duration_s: float
    requests: int
    responses: int
    failures: Mapping[str, int]
    cancelled: int
    is_stable: bool
    windows: int
    latencies: Latencies
    client: ClientCost
    server: tuple[ServerSplit, ...] = ()
    # Gauges of /metrics and NVML. Key: a name with labels. Value: (mean, maximum).
    gauges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Results of each model of a mix.
    models: Mapping[str, Measurement] = field(default_factory=dict)
    # Key: a phase, in order of appearance.
    timings: Mapping[str, PhaseTiming] = field(default_factory=dict)
    # Tokens are the sums of the responses' usage.
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def requests_per_s(self) -> float:
        """Successful requests per second; failed and cancelled requests do not count."""
        return self.requests / self.duration_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, of inputs and outputs."""
        return (self.input_tokens + self.output_tokens) / self.duration_s
