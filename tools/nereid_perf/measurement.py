"""Result of one level of load: what workers measured, merged, and what the server counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdrh.histogram import HdrHistogram


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """Level of load.

    kind: "concurrency" (value: requests in flight), "rate" (value: requests per second) or "trace"
    (value 1).
    """

    kind: str
    value: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Histograms of latencies in ns.

    response: from the time that the schedule intended to the last response. service: from the
    hand-over of the bytes to the socket to the last response. In a closed loop the two are equal.
    first: from the intended time to the first response. between: between responses of one request.
    """

    response: HdrHistogram
    service: HdrHistogram
    first: HdrHistogram
    between: HdrHistogram


@dataclass(frozen=True, slots=True)
class ServerSplit:
    """Means in us per request of one model, from its statistics before and after.

    total_us: a request's whole time in the server. The times of the cache are per hit and per miss.
    `None` means that the server does not say.
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
    """One phase of responses' Server-Timing, or the service time that no phase covers.

    mean_us: over all requests with Server-Timing, so that means add up. p99_us: over the requests
    that name this phase; `requests` is their number.
    """

    requests: int
    mean_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class ClientCost:
    """Cost of the load generator.

    cpu_us: user and system time of all workers per request. busy: the largest share of a CPU that
    one worker took. delayed: requests sent more than 1 ms after their intended time while they did
    not wait for the server. is_bottleneck: true if the figures say more of the client than of the
    server.
    """

    cpu_us: float
    busy: float
    delayed: int
    is_bottleneck: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one level of load on one server.

    failures: numbers of requests by the error that they ended with.
    """

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
    # Results of a mix's models: name -> the model's own requests, failures and latencies.
    models: Mapping[str, Measurement] = field(default_factory=dict)
    # Timings by the phases' names, in the order in which they came.
    timings: Mapping[str, PhaseTiming] = field(default_factory=dict)

    @property
    def requests_per_s(self) -> float:
        """Successful requests per second, without failed and cancelled ones."""
        return self.requests / self.duration_s
