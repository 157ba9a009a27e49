"""The plan of a run's requests: the same for all levels of load, and pickled for the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nereid_perf.load.shape import LoadShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_perf.endpoint import Endpoint
    from nereid_perf.request import RequestSource

Compression = Literal["none", "gzip", "deflate"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model that requests are sent to; with version "" the server chooses one."""

    model: str
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The source of the requests, and how they are sent.

    make_source: picklable; takes a worker's number and the number of workers, once per level in
    each worker process. checks_responses: costs client time; not possible if decoupled.
    max_in_flight: of an open loop, over all workers; response times include the wait for it.
    streams_per_connection: gRPC calls on a connection, or requests on a stream. path: of calls to
    OpenAI's API; "" means inference requests.
    """

    endpoint: Endpoint
    workloads: tuple[Workload, ...]
    make_source: Callable[[int, int], RequestSource]
    workers: int = 1
    shape: LoadShape = field(default_factory=LoadShape)
    path: str = ""
    streaming: bool = False
    decoupled: bool = False
    compression: Compression = "none"
    server_timing: bool = False
    checks_responses: bool = False
    cancel_percent: float = 0.0
    max_in_flight: int = 1024
    streams_per_connection: int = 8
    connect_timeout_s: float = 10.0
    seed: int = 0
