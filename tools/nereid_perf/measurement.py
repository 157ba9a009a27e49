"""What one level of load showed: what workers measured, merged, and what the server counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdrh.histogram import HdrHistogram


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """kind: "concurrency" (value in flight), "rate" (requests per second) or "trace" (value 1)."""

    kind: str
    value: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Histograms in ns.

    response: from the time that the schedule intended to the last response; service: from the
    bytes' hand-over to the socket to the last response. In a closed loop the two are equal.
    first: from the intended time to the first response; between: responses of one request.
    """

    response: HdrHistogram
    service: HdrHistogram
    first: HdrHistogram
    between: HdrHistogram


@dataclass(frozen=True, slots=True)
class ServerSplit:
    """Means in us per request of one model, from its statistics before and after; None: unsaid.

    total_us: of a request's whole time in the server. The times of the cache are per hit and miss.
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
    """One phase of what responses say themselves (Server-Timing), or what of the service time they
    do not. mean_us: over all requests that say anything, so that means add up; p99_us: of those,
    requests in number, that name this phase.
    """

    requests: int
    mean_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class ClientCost:
    """What the load generator took.

    cpu_us: user and system time of all workers per request; busy: the largest share of a CPU that
    one worker took; delayed: requests sent more than 1 ms after the time intended while the server
    was not what they waited for; is_bottleneck: the figures say more of the client than of the
    server.
    """

    cpu_us: float
    busy: float
    delayed: int
    is_bottleneck: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """One level of load of one server. failures: requests by the error they ended with."""

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
    # Gauges of /metrics and NVML over the measurement: name with labels -> (mean, largest).
    gauges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Of each model of a mix: name -> its own requests, failures and latencies.
    models: Mapping[str, Measurement] = field(default_factory=dict)
    # By the phases' names, in the order in which they came.
    timings: Mapping[str, PhaseTiming] = field(default_factory=dict)

    @property
    def requests_per_s(self) -> float:
        """Without failed and cancelled ones."""
        return self.requests / self.duration_s
