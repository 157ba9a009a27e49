"""The console's document, which GET /console/facts responds with and /console/stream streams.

The document is made of JSON objects. Nothing in it is null: an unknown member is absent. Texts
(names, reasons, errors) come from models, clients and files: whatever shows them escapes them.

Endpoints, on the HTTP port, with --console:

GET /console                 the page; GET /console/static/NAME: its files, to which the page
                             refers as console/static/NAME. Both are open: they have no data.
GET /console/facts           a Document. Query: model=NAME (and version=N) for one model alone, with
                             `details`; else query=TEXT (part of a name), offset=N, limit=N.
GET /console/stream          the same, as server-sent events, with query, offset and limit, or
                             model. `event: snapshot` has a Document, at the start and whenever
                             documents were left out for a slow reader; `event: patch` has an RFC
                             7396 JSON merge patch for the last one: objects merge, null deletes a
                             member, and any other value replaces.

Errors are {"error": text}: 401 and 403 as of any API, 400 for a query that makes no sense, 404
without --console, 503 with Retry-After when too many consoles are open. Actions (load, unload,
infer, drain) are those of /v2, with the viewer's own key.

A viewer who may see only some models (permissions.for_all_models lacks "console") gets the figures
of these models; figures that are not known by model are absent.

New versions may add fields, but never change or remove one.
"""

from __future__ import annotations

from typing import Any, Final, TypedDict

FORMAT: Final = "nereid.console/1"
DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 200
MAX_QUERY_CHARACTERS: Final = 200


class Server(TypedDict):
    """The gateway that responds."""

    name: str
    version: str
    ready: bool
    draining: bool
    # Time of the facts, in seconds since 1970. Rates and means are over the `interval_s` before it.
    time_s: float
    interval_s: float
    # Consoles that are open at this gateway, and how many may be.
    consoles: int
    max_consoles: int
    # This gateway's port; 0: it serves no gRPC.
    grpc_port: int
    # Value of --timeline-seconds; 0: no timeline is recorded.
    timeline_seconds: float
    # Questions that the mesh did not answer, with the reasons; empty if it answered all.
    problems: list[str]


class Permissions(TypedDict):
    """The viewer's permissions. Rights are names of API groups: inference, model-repository, ..."""

    # Name of the viewer; empty: nobody needs credentials.
    principal: str
    rights: list[str]
    # Rights that hold for all models; the others hold for models whose row has them in `may`.
    for_all_models: list[str]
    # True if load and unload are open to the viewer: with --open-control-apis=false they may be
    # closed to everybody.
    may_load: bool
    may_infer: bool
    # True if POST /v2/nereid/executors/NAME/drain is open to the viewer, like may_load, for all
    # models.
    may_drain: bool


class _Counts(TypedDict):
    """Figures that are counted by model."""

    models: int
    # Number of versions by state: READY, UNAVAILABLE, LOADING, UNLOADING, and "" for versions that
    # were never loaded.
    states: dict[str, int]
    # Versions that should serve and cannot.
    failed: int
    executors: int
    schedulers: int
    # Requests that wait in queues.
    pending: int
    requests_per_s: float
    errors_per_s: float
    # Latency of all requests in the last interval that had any.
    latency_us: Latency
    # True if rates are those of the shown models alone, since the mesh has very many.
    partial: bool


class Summary(_Counts, total=False):
    """The mesh at a glance."""

    # Waiting requests: those that wait for a first load; all by device kind cpu, gpu, any.
    held: int
    waiting: dict[str, int]
    # Responses of this gateway (or its group) per second, by status.
    http: dict[str, float]
    grpc: dict[str, float]
    http_connections: int
    grpc_connections: int


class Statement(TypedDict):
    """One thing that `nereid explain` says."""

    code: str
    text: str
    problem: bool
    # Recommended change; empty: none.
    advice: str
    version: str
    figures: dict[str, Any]


class Rates(TypedDict):
    """Rates per second, in the last interval."""

    requests: float
    errors: float
    refused: float
    # Rows (inferences) and executions (batches).
    rows: float
    executions: float


class Latency(TypedDict, total=False):
    """Mean microseconds of a request in the last interval with any, by phase."""

    request: float
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float


class Batches(TypedDict):
    """Sizes of batches, and why they were closed."""

    # Mean number of rows in the last interval; 0: there were no executions.
    mean_rows: float
    max_batch_size: int
    # Executions by size, since the load; the keys are upper bounds ("1", "2", "4", ..., "+Inf").
    sizes: dict[str, int]
    # Batches by the reason for which they were closed (metrics.CLOSING_REASONS), since the load and
    # in the last interval.
    closed: dict[str, int]
    closed_recently: dict[str, int]


class Queue(TypedDict):
    """Requests that wait for an execution."""

    pending: int
    # Words such as "an instance: all 2 are busy"; empty: nothing waits.
    waits_for: str


class Model(TypedDict, total=False):
    """One version of one model (a row). The members from name to statements are always present."""

    name: str
    version: str
    # READY, LOADING, UNLOADING, UNAVAILABLE; empty: never loaded.
    state: str
    reason: str
    # True if the version is ready and in memory.
    in_memory: bool
    # Rights that the viewer has for this model; present only where rights differ by model.
    may: list[str]
    # "failed": the version should serve and does not; "problem": a statement is a problem; else
    # "busy", "idle" or "out".
    health: str
    statements: list[Statement]

    rates: Rates
    latency_us: Latency
    batches: Batches
    queue: Queue
    # Number of ready instances by state: free and busy.
    instances: dict[str, int]
    # Number of sequences of a stateful model by state: live and backlog.
    sequences: dict[str, int]
    # Cache lookups of a cached model: hits and misses, since the load.
    cache: dict[str, int]
    # Memory of the loads, by device.
    memory_bytes: dict[str, int]
    # Counters since the load: all, and failures by reason.
    totals: dict[str, int]
    failures: dict[str, int]
    load_seconds: float
    # Figures of a model with target_p99_us.
    target: dict[str, float]
    # The scheduler that owns it, where there are several.
    scheduler: str


class Models(TypedDict):
    """A page of the models. Failed ones come first; else they are sorted by name."""

    query: str
    offset: int
    limit: int
    # Number of versions that match the query and that the viewer may see; number of all versions.
    matched: int
    total: int
    # Keys of `rows` in the order of the page. Keys are opaque: never take them apart.
    keys: list[str]
    rows: dict[str, Model]


class Tenant(TypedDict):
    """A model's part of a device."""

    model: str
    version: str
    instances: int
    # Memory that the loads took, as far as executors measured it.
    memory_bytes: int


class Device(TypedDict, total=False):
    """A device of an executor."""

    # Examples: "cpu", "gpu:0".
    name: str
    uuid: str
    memory_total_bytes: int
    memory_used_bytes: int
    # Fraction from 0 to 1.
    utilization: float
    power_watts: float
    tenants: list[Tenant]


class Executor(TypedDict):
    """An executor that has joined."""

    name: str
    # Opaque name of the machine, equal for all that runs on it.
    host: str
    backends: list[str]
    instances: int
    busy: int
    devices: list[Device]


class Scheduler(TypedDict):
    """A scheduler and the models that it owns."""

    name: str
    reachable: bool
    models: int
    # Names of the first models, sorted.
    owned: list[str]
    gateways: int
    epoch: int


class Cache(TypedDict):
    """The response cache."""

    entries: int
    used_bytes: int
    capacity_bytes: int
    hits_per_s: float
    misses_per_s: float
    hits: int
    lookups: int
    evictions: int
    failures: int


class SlowRequest(TypedDict, total=False):
    """One of the slowest requests of the last minute at this gateway."""

    # Time of its last response, in seconds since 1970.
    time_s: float
    model: str
    version: str
    request_id: str
    # Number of the request in the mesh, for `nereid timeline --request`; decimal text, as it may be
    # above 2^53.
    number: str
    duration_us: float
    # Error text; empty: the request succeeded.
    error: str
    # 32 hexadecimal digits; present only if the request is traced.
    trace_id: str
    # Duration of each phase by the scheduler's times: queue, batch_wait, input, inference, output,
    # network, ...
    phases_us: dict[str, float]
    batch_size: int
    instance: str
    attempt: int


class BatchMember(TypedDict):
    """A request of a batch."""

    request_id: str
    rows: int
    queue_us: float


class Batch(TypedDict):
    """A batch that an instance executes."""

    # Time when it began, in seconds since 1970, and microseconds that have passed since.
    time_s: float
    duration_us: float
    instance: str
    # Reason for which it was closed.
    reason: str
    rows: int
    # Its first members.
    members: list[BatchMember]


class Difference(TypedDict, total=False):
    """A field of the effective configuration that differs from the file."""

    # Path as in config.pbtxt: dynamic_batching.preferred_batch_size
    field: str
    # Values in the file and in the effective configuration; absent where the field is not set.
    declared: Any
    effective: Any


class Configuration(TypedDict, total=False):
    """The effective configuration beside the declared one."""

    # JSON of /v2/models/NAME/config.
    effective: dict[str, Any]
    # Content of config.pbtxt, or of the load's override; empty: the configuration is all derived.
    declared: dict[str, Any]
    differences: list[Difference]


class Details(TypedDict, total=False):
    """Details of one model, by version; present only with model=NAME."""

    model: str
    versions: dict[str, Configuration]
    # Batches that are executed at the moment.
    batches: dict[str, list[Batch]]
    # The document of `nereid explain --json`.
    explanation: dict[str, Any]


class _Sections(TypedDict):
    format: str
    server: Server
    permissions: Permissions
    summary: Summary
    models: Models
    # Keys are names of executors and of schedulers.
    executors: dict[str, Executor]
    schedulers: dict[str, Scheduler]
    # The slowest request comes first.
    slow_requests: list[SlowRequest]


class Document(_Sections, total=False):
    """The whole document."""

    # Absent if the mesh has no cache, or if the viewer may see only some models.
    cache: Cache
    details: Details
