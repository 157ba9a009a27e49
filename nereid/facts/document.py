"""The console's document: what GET /console/facts responds with, and /console/stream streams.

JSON objects throughout. Nothing in it is null: what is unknown is absent. Texts (names, reasons,
errors) are what models, clients and files say: whoever shows them escapes them.

Endpoints, on the HTTP port, with --console:

GET /console                 the page; GET /console/static/NAME: what it needs, to which the page
                             refers as console/static/NAME. Open: neither has any data.
GET /console/facts           a Document. Query: model=NAME (and version=N): only that one, with
                             `details`; else query=TEXT (part of a name), offset=N, limit=N.
GET /console/stream          the same, as server-sent events, with query, offset and limit, or
                             model. `event: snapshot` has a Document, at the start and whenever some
                             were left out for a slow reader; `event: patch` has an RFC 7396 JSON
                             merge patch for the last one: objects merge, null deletes a member, and
                             all else replaces.

Errors are {"error": text}: 401 and 403 as of any API, 400 for a query that makes no sense, 404
without --console, 503 with Retry-After when too many consoles are open. Actions (load, unload,
infer, drain) are those of /v2, with the viewer's own key.

Who may see some models alone (permissions.for_all_models is without "console") gets figures of
these alone; what cannot be told apart by model is absent.

Fields are only ever added.
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
    # Seconds since 1970, of the facts; rates and means are of the `interval_s` before.
    time_s: float
    interval_s: float
    # Consoles that are open at this gateway, and how many may be.
    consoles: int
    max_consoles: int
    # Of this gateway; 0: it serves no gRPC.
    grpc_port: int
    # Of --timeline-seconds; 0: no timeline is recorded.
    timeline_seconds: float
    # What could not be asked of the mesh, and why; empty if everything could.
    problems: list[str]


class Permissions(TypedDict):
    """Of whoever asks. Rights are names of API groups: inference, model-repository, ..."""

    # Empty: nobody needs credentials.
    principal: str
    rights: list[str]
    # Of the rights those that hold for all models; others are for the models of each row's `may`.
    for_all_models: list[str]
    # Whether load and unload are open to the viewer: with --open-control-apis=false they may be
    # closed to everybody.
    may_load: bool
    may_infer: bool
    # Executors, by POST /v2/nereid/executors/NAME/drain: as may_load, for all models.
    may_drain: bool


class _Counts(TypedDict):
    """What is counted by model."""

    models: int
    # READY, UNAVAILABLE, LOADING, UNLOADING, and "" for what was never loaded: versions of each.
    states: dict[str, int]
    # Versions that cannot serve although they were to.
    failed: int
    executors: int
    schedulers: int
    # Requests that wait.
    pending: int
    requests_per_s: float
    errors_per_s: float
    # Of all requests in the last interval with any.
    latency_us: Latency
    # Whether rates are of the models shown alone, since the mesh has very many.
    partial: bool


class Summary(_Counts, total=False):
    """The mesh at a glance."""

    # Of the requests that wait those for a first load; all by device kind cpu, gpu, any.
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
    # What to do; empty: nothing.
    advice: str
    version: str
    figures: dict[str, Any]


class Rates(TypedDict):
    """Per second, in the last interval."""

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
    """Of the executions."""

    # In the last interval; 0: there were none.
    mean_rows: float
    max_batch_size: int
    # Executions by size, since the load; the keys are upper bounds ("1", "2", "4", ..., "+Inf").
    sizes: dict[str, int]
    # Batches by why they were closed (metrics.CLOSING_REASONS): since the load, in the interval.
    closed: dict[str, int]
    closed_recently: dict[str, int]


class Queue(TypedDict):
    """Requests that wait."""

    pending: int
    # Plain words, such as "an instance: all 2 are busy"; empty: nothing waits.
    waits_for: str


class Model(TypedDict, total=False):
    """One version of one model (a row). Always there: name to statements."""

    name: str
    version: str
    # READY, LOADING, UNLOADING, UNAVAILABLE; empty: never loaded.
    state: str
    reason: str
    # Whether it is ready and in memory.
    in_memory: bool
    # The rights that the viewer has for it; only where they differ by model.
    may: list[str]
    # "failed": it was to serve and does not; "problem": a statement says so; "busy"; "idle"; "out".
    health: str
    statements: list[Statement]

    rates: Rates
    latency_us: Latency
    batches: Batches
    queue: Queue
    # Ready instances: free and busy.
    instances: dict[str, int]
    # Of a stateful model: live and backlog.
    sequences: dict[str, int]
    # Of a cached model: hits and misses, since the load.
    cache: dict[str, int]
    # By device.
    memory_bytes: dict[str, int]
    # Since the load.
    totals: dict[str, int]
    failures: dict[str, int]
    load_seconds: float
    # Of a model with target_p99_us.
    target: dict[str, float]
    # The scheduler that owns it, where there are several.
    scheduler: str


class Models(TypedDict):
    """A page of them. Failed ones come first, then by name."""

    query: str
    offset: int
    limit: int
    # How many versions match the query (and may be seen); of how many.
    matched: int
    total: int
    # Of the page, in order; each is a key of `rows`. Opaque: never take it apart.
    keys: list[str]
    rows: dict[str, Model]


class Tenant(TypedDict):
    """A model's part of a device."""

    model: str
    version: str
    instances: int
    # What the loads took, as far as executors measured it.
    memory_bytes: int


class Device(TypedDict, total=False):
    """A device of an executor."""

    # "cpu", "gpu:0", ...
    name: str
    uuid: str
    memory_total_bytes: int
    memory_used_bytes: int
    # 0 to 1.
    utilization: float
    power_watts: float
    tenants: list[Tenant]


class Executor(TypedDict):
    """One that has joined."""

    name: str
    # Opaque: what runs on one machine has the same.
    host: str
    backends: list[str]
    instances: int
    busy: int
    devices: list[Device]


class Scheduler(TypedDict):
    """A scheduler, and what it owns."""

    name: str
    reachable: bool
    models: int
    # The first of them, by name.
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
    """One of the slowest of the last minute, at this gateway."""

    # Seconds since 1970, of its last response.
    time_s: float
    model: str
    version: str
    request_id: str
    # In the mesh, for `nereid timeline --request`; decimal, as it may be above 2^53.
    number: str
    duration_us: float
    # Empty: it succeeded.
    error: str
    # Only of a request that is traced: 32 hexadecimal digits.
    trace_id: str
    # By the scheduler's times: queue, batch_wait, input, inference, output, network, ...
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

    # Seconds since 1970, when it began; and how long that is ago.
    time_s: float
    duration_us: float
    instance: str
    # Why it was closed.
    reason: str
    rows: int
    # The first of them.
    members: list[BatchMember]


class Difference(TypedDict, total=False):
    """A field of the configuration that is not as the file says."""

    # As in config.pbtxt: dynamic_batching.preferred_batch_size
    field: str
    # Each is absent where the file, or the configuration, does not have the field.
    declared: Any
    effective: Any


class Configuration(TypedDict, total=False):
    """Declared against effective."""

    # The JSON of /v2/models/NAME/config.
    effective: dict[str, Any]
    # What config.pbtxt (or the load's override) says; empty: there is none, all is derived.
    declared: dict[str, Any]
    differences: list[Difference]


class Details(TypedDict, total=False):
    """Only of one model, with model=NAME; by version."""

    model: str
    versions: dict[str, Configuration]
    # Those that are executed at the moment.
    batches: dict[str, list[Batch]]
    # The document of `nereid explain --json`.
    explanation: dict[str, Any]


class _Sections(TypedDict):
    format: str
    server: Server
    permissions: Permissions
    summary: Summary
    models: Models
    # By the executor's name, the scheduler's name.
    executors: dict[str, Executor]
    schedulers: dict[str, Scheduler]
    # Slowest first.
    slow_requests: list[SlowRequest]


class Document(_Sections, total=False):
    """All of it."""

    # Absent: the mesh has no cache, or the viewer may see some models alone.
    cache: Cache
    details: Details
