"""The result of one level of load: merged figures of the workers, and the server's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdrh.histogram import HdrHistogram


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A level of load.

    kind: "concurrency" (value: requests in flight), "rate" (value: requests per second) or "trace"
    (value 1).
    """

    kind: str
    value: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Histograms of latencies, in ns.

    response: from the time at which the schedule wanted to send the request (the intended time) to
    the last response. service: from the writing of the request to the socket to the last response.
    In a closed loop, response and service are equal. first: from the intended time to the first
    response. between: times between the responses of one request.
    """

    response: HdrHistogram
    service: HdrHistogram
    first: HdrHistogram
    between: HdrHistogram


@dataclass(frozen=True, slots=True)
class ServerSplit:
    """Mean times of one model's requests in us, from the statistics before and after the load.

    total_us: whole time of a request in the server. The times of the cache are means per hit and
    per miss. `None` means that the server does not report the time.
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

    mean_us: mean over all requests with Server-Timing, so that the means of all phases add up.
    p99_us: 99th percentile over the requests whose Server-Timing has this phase. requests: the
    number of these requests.
    """

    requests: int
    mean_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class ClientCost:
    """The cost of the load generator.

    cpu_us: user and system time of all workers, per request. busy: the largest share of a CPU that
    one worker used. delayed: number of requests that were sent more than 1 ms after their intended
    time, although they did not wait for the server. is_bottleneck: true if the load generator, and
    not the server, limited the measurement.
    """

    cpu_us: float
    busy: float
    delayed: int
    is_bottleneck: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one level of load on one server.

    failures: maps an error to the number of requests that ended with it.
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
    # Gauges of /metrics and NVML during the measurement. Maps a name with labels to (mean,
    # maximum).
    gauges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Results of the models of a mix. Maps a model's name to its requests, failures and latencies.
    models: Mapping[str, Measurement] = field(default_factory=dict)
    # Maps a phase's name to its timing, in the order in which the phases first came.
    timings: Mapping[str, PhaseTiming] = field(default_factory=dict)

    @property
    def requests_per_s(self) -> float:
        """Successful requests per second; failed and cancelled requests do not count."""
        return self.requests / self.duration_s
