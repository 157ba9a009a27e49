"""The console's document, which /console/facts returns and /console/stream streams.

The document consists of JSON objects. No value is null: a member whose value is unknown is absent.
Texts (names, reasons, errors) come from models, clients and files, so a program that shows them
must escape them.

Endpoints, on the HTTP port, with --console:

GET /console                 the console's page. GET /console/static/NAME: the page's files, to
                             which it refers as console/static/NAME. Both are open to everybody,
                             because they contain no data.
GET /console/facts           a Document. Query: model=NAME (and version=N) for one model alone, with
                             `details`; else query=TEXT (part of a name), offset=N, limit=N,
                             sort=errors, p50, p95, p99, requests or pending (the worst first).
                             events=N adds the last N `events`.
GET /console/stream          the same document, as server-sent events, with the same query.
                             `event: snapshot` has a Document; it is sent at the start and whenever
                             documents were left out for a slow reader. `event: patch` has an RFC
                             7396 JSON merge patch for the last document: objects merge, null
                             deletes a member, and any other value replaces the old one.

Errors are {"error": text}: 401 and 403 as for any API, 400 for a query that makes no sense, 404
without --console, 503 with Retry-After when too many consoles are open. Actions (load, unload,
infer, drain) are those of /v2, with the viewer's own key.

A viewer who may see only some models (permissions.for_all_models lacks "console") gets the figures
of these models only. Figures that are not counted per model are then absent.

New versions may add fields, but never change or remove one.
"""

from __future__ import annotations

from typing import Any, Final, TypedDict

FORMAT: Final = "nereid.console/1"
DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 200
MAX_QUERY_CHARACTERS: Final = 200
MAX_EVENTS: Final = 500


class Server(TypedDict):
    """The gateway that sends the document."""

    name: str
    version: str
    ready: bool
    draining: bool
    # Seconds since 1970. Rates and means are over the `interval_s` before this time.
    time_s: float
    interval_s: float
    # Open consoles at this gateway.
    consoles: int
    max_consoles: int
    # 0 if the gateway serves no gRPC.
    grpc_port: int
    # Value of --timeline-seconds; 0 means that no timeline is recorded.
    timeline_seconds: float
    # Facts that could not be collected, with the reason.
    problems: list[str]


class Permissions(TypedDict):
    """The viewer's permissions. Rights are names of API groups: inference, model-repository, ..."""

    # Empty if nobody needs credentials.
    principal: str
    rights: list[str]
    # Rights for all models. `may` in a model's row has rights for this model alone.
    for_all_models: list[str]
    # False for everybody with --open-control-apis=false.
    may_load: bool
    may_infer: bool
    # True if the viewer may call POST /v2/nereid/executors/NAME/drain.
    may_drain: bool


class _Counts(TypedDict):
    models: int
    # Key: a state, or "" for never loaded. Value: its number of versions.
    states: dict[str, int]
    # Versions that should be served but cannot be.
    failed: int
    executors: int
    schedulers: int
    # Requests that wait in queues.
    pending: int
    requests_per_s: float
    errors_per_s: float
    # Latency of all requests, in the last interval that had requests.
    latency_us: Latency
    # Always false: the rates cover all models.
    partial: bool


class Summary(_Counts, total=False):
    """Summary of the whole mesh."""

    # held: requests that wait for a model's first load. waiting: by device kind (cpu, gpu, any).
    held: int
    waiting: dict[str, int]
    # Responses per second by status, from this gateway or its group of gateways.
    http: dict[str, float]
    grpc: dict[str, float]
    http_connections: int
    grpc_connections: int


class Statement(TypedDict):
    """A statement about a model, as `nereid explain` makes it."""

    code: str
    text: str
    problem: bool
    # Recommended change; empty if there is none.
    advice: str
    version: str
    figures: dict[str, Any]


class Rates(TypedDict):
    """Rates per second in the last interval."""

    requests: float
    errors: float
    refused: float
    # rows: inferences. executions: executed batches.
    rows: float
    executions: float


class Latency(TypedDict, total=False):
    """Mean microseconds per request and phase, in the last interval that had requests."""

    request: float
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float


class Recent(TypedDict):
    """A version's last 30 minutes."""

    # How long the figures are about: less than 30 minutes after a load.
    seconds: int
    # Successful, failed and refused requests; those that clients have cancelled are in none. A
    # model's own error response is a failure.
    requests: int
    errors: int
    refused: int
    requests_per_s: float
    # Quantiles of the executed requests' durations, interpolated within a histogram's buckets.
    p50_us: int
    p95_us: int
    p99_us: int


class Minute(TypedDict):
    """One of a version's last 30 minutes, which had requests."""

    # How many minutes ago it was.
    age: int
    requests: int
    errors: int
    p50_us: int
    p99_us: int


class Batches(TypedDict):
    """Sizes of batches, and the reasons for which batches were closed."""

    # In the last interval; 0 without executions.
    mean_rows: float
    max_batch_size: int
    # Executions since the load, by size. Keys are upper bounds ("1", "2", "4", ..., "+Inf").
    sizes: dict[str, int]
    # Batches by closing reason (metrics.CLOSING_REASONS), since the load and in the last interval.
    closed: dict[str, int]
    closed_recently: dict[str, int]


class Queue(TypedDict):
    """Requests that wait to be executed."""

    pending: int
    # Example: "an instance: all 2 are busy". The text is empty if no request waits.
    waits_for: str


class Model(TypedDict, total=False):
    """One version of one model (a row). The members from name to statements are always present."""

    name: str
    version: str
    # READY, LOADING, UNLOADING or UNAVAILABLE; empty if the version was never loaded.
    state: str
    reason: str
    # True if the version is ready and loaded in memory.
    in_memory: bool
    # The viewer's rights for this model; absent if they are the same for all models.
    may: list[str]
    # "failed" (should be served but is not), "problem" (in the statements), "busy", "idle" or
    # "out".
    health: str
    statements: list[Statement]

    rates: Rates
    latency_us: Latency
    # Absent if the last 30 minutes had no request.
    recent: Recent
    batches: Batches
    queue: Queue
    # Ready instances by state: free or busy.
    instances: dict[str, int]
    # Sequences of a stateful model by state: live or backlog.
    sequences: dict[str, int]
    # Lookups for a cached model since the load: hits and misses.
    cache: dict[str, int]
    # Memory that the loads took, by device.
    memory_bytes: dict[str, int]
    # Counters since the load, and failures since the load by reason.
    totals: dict[str, int]
    failures: dict[str, int]
    load_seconds: float
    # Only for a model that has a target_p99_us.
    target: dict[str, float]
    # The model's owner, if there are several schedulers.
    scheduler: str


class Models(TypedDict):
    """One page of the list of models. Failed versions come first; the others are sorted by name."""

    query: str
    offset: int
    limit: int
    # matched: versions that match the query and that the viewer may see. total: all versions.
    matched: int
    total: int
    # Keys of `rows`, in the order of the page. Readers must not parse them.
    keys: list[str]
    rows: dict[str, Model]


class Tenant(TypedDict):
    """A model's share of a device."""

    model: str
    version: str
    instances: int
    # Memory that executors have measured.
    memory_bytes: int


class Device(TypedDict, total=False):
    """A device of an executor."""

    # The name is "cpu", or "gpu:0" and so on.
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
    # Name for people: the one that its operator gave it, or that of its host.
    title: str
    # Opaque name of the executor's machine. Executors on the same machine have the same name here.
    host: str
    # The machine's own name; empty for an executor of an older release.
    host_name: str
    backends: list[str]
    instances: int
    busy: int
    devices: list[Device]


class Scheduler(TypedDict):
    """A scheduler and the models that it owns."""

    name: str
    reachable: bool
    models: int
    # The first models that the scheduler owns, sorted.
    owned: list[str]
    gateways: int
    epoch: int
    # The name of its machine; empty if it is unreachable, or of an older release.
    host_name: str


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

    # Seconds since 1970, at the request's last response.
    time_s: float
    model: str
    version: str
    request_id: str
    # Number in the mesh, for `nereid timeline --request`. A text, because JSON readers round above
    # 2^53.
    number: str
    duration_us: float
    # Empty if the request succeeded.
    error: str
    # 32 hexadecimal digits; absent if the request is not traced.
    trace_id: str
    # Duration of each phase: queue, batch_wait, input, inference, output, network, ...
    phases_us: dict[str, float]
    batch_size: int
    instance: str
    attempt: int


class BatchMember(TypedDict):
    """A request that is part of a batch."""

    request_id: str
    rows: int
    queue_us: float


class Batch(TypedDict):
    """A batch that an instance is executing."""

    # time_s: start of the execution, in seconds since 1970. duration_us: time since.
    time_s: float
    duration_us: float
    instance: str
    # Reason for which the batch was closed.
    reason: str
    rows: int
    # The first requests of the batch.
    members: list[BatchMember]


class Difference(TypedDict, total=False):
    """A field that has another value in the effective configuration than in the file."""

    # Path as in config.pbtxt, such as dynamic_batching.preferred_batch_size.
    field: str
    # Absent if the field is not set.
    declared: Any
    effective: Any


class Configuration(TypedDict, total=False):
    """The effective configuration and the declared one."""

    # The JSON document of /v2/models/NAME/config.
    effective: dict[str, Any]
    # Content of config.pbtxt or of a load request; empty if the whole configuration is derived.
    declared: dict[str, Any]
    differences: list[Difference]


class _Step(TypedDict):
    model: str
    # Empty for the latest version.
    version: str
    # Indexes of the steps whose outputs it reads.
    after: list[int]


class Step(_Step, total=False):
    """A step of an ensemble, and its requests of the last 30 minutes, if it had any."""

    # Absent if the step always runs.
    condition: str
    requests: int
    errors: int
    # From the request to the step's model until its last response. The mean is since the load.
    mean_us: int
    p50_us: int
    p99_us: int


class _Event(TypedDict):
    # Seconds since 1970, at the event's end.
    time_s: float
    # The scheduler that has recorded it.
    scheduler: str
    # "load", "unload", "load failed", "executor joined", "executor left", "executor lost",
    # "instance lost", "scheduler started" or "scheduler takeover".
    what: str
    # The version, executor, instance or schedulers that it is about.
    subject: str
    # True for a failure, or a loss that nobody has asked for.
    problem: bool


class Event(_Event, total=False):
    """Something that has happened in the mesh; members that would be empty are absent."""

    duration_us: int
    detail: str
    model: str
    # Why a model was loaded or unloaded, and the principal that asked for it.
    cause: str
    principal: str


class Diagnosis(TypedDict):
    """A cause for which a version is slow, as `nereid doctor` finds it."""

    code: str
    # Part of the requests' time that the remedy may take away, from 0 to 1.
    share: float
    evidence: str
    advice: str
    # Texts to paste, and what the remedy brings; each may be empty.
    remedy: str
    gain: str
    command: str
    figures: dict[str, Any]
    # All of this as one sentence.
    text: str


class Details(TypedDict, total=False):
    """Details of one model, by version; present only if the query has model=NAME."""

    model: str
    versions: dict[str, Configuration]
    # Batches in execution, by version.
    batches: dict[str, list[Batch]]
    # The last 30 minutes, by version; the present minute is the last one.
    minutes: dict[str, list[Minute]]
    # The steps of ensembles, by version, in the configuration's order.
    steps: dict[str, list[Step]]
    # Causes found in the last 10 to 20 s, by version; the first one explains most of the time.
    diagnoses: dict[str, list[Diagnosis]]
    # The document that `nereid explain --json` prints.
    explanation: dict[str, Any]


class _Sections(TypedDict):
    format: str
    server: Server
    permissions: Permissions
    summary: Summary
    models: Models
    executors: dict[str, Executor]
    schedulers: dict[str, Scheduler]
    # The slowest request comes first.
    slow_requests: list[SlowRequest]


class Document(_Sections, total=False):
    """The whole document."""

    # Absent if the mesh has no cache, or if the viewer may see only some models.
    cache: Cache
    details: Details
    # Present only if the query has events=N. The last 500 of each scheduler, while it runs. Readers
    # must not parse the keys.
    events: dict[str, Event]
