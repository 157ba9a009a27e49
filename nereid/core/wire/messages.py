"""Messages between gateway and scheduler; a link in memory passes the objects themselves.

A head is a protobuf message without what differs from request to request, so its bytes can be a
cache key. Classes used for each request are no data classes, whose __init__ is not compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import Unavailable
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.shm.segments import Lease

Parameter = bool | int | float | str

# Parameter that requests the top classes of an output.
CLASSIFICATION: Final = "classification"

# A decoupled model refuses a request for one response. The front ends put their protocol's name
# before this.
DECOUPLED: Final = "doesn't support models with decoupled transaction policy"


# Bytes of one tensor. A memoryview occurs only inside the gateway.
Payload = bytes | memoryview | SharedMemory


def payload_bytes(payload: Payload) -> int:
    """Return the size in bytes of a tensor, inline or in shared memory."""
    return payload.size_bytes if isinstance(payload, SharedMemory) else len(payload)


class ErrorStatus(NamedTuple):
    """Failure as the client sees it; `code` is a gRPC status code."""

    code: int
    message: str
    accepted: bool = False
    # True if the model responded with the error, so the request counts as executed.
    by_model: bool = False
    retry_after_ms: int = 0


def error_status_of(error: NereidError) -> ErrorStatus:
    """Return the status that describes this error."""
    return ErrorStatus(
        error.code, error.message, error.accepted, retry_after_ms=error.retry_after_ms
    )


NO_CAPACITY_FOR_COPY: Final = ErrorStatus(
    Unavailable.code, "a copy runs only while no other request waits and an instance is free", True
)
MOVED: Final = ErrorStatus(Unavailable.code, "another scheduler of the mesh serves the model now")


class InferRequest:
    """Inference request that a gateway sends to the scheduler; its id is unique in the mesh.

    head: a ModelInferRequest without id, parameters and tensor data. payloads: one raw tensor for
    each input. timeout_us: limit in the queue, as in Triton. deadline: time.monotonic() at which
    the client stops waiting.
    """

    __slots__ = (
        "accepts_many",
        "callable_models",
        "caller",
        "caller_key",
        "confined_caller",
        "copied_sequence",
        "deadline",
        "depth",
        "digest",
        "error_status",
        "head",
        "id",
        "is_shadow",
        "lease",
        "parameters",
        "payloads",
        "priority",
        "request_id",
        "resent",
        "sequence_owner",
        "text_digest",
        "timeout_us",
        "trace_context",
        "wants_sequence_place",
        "wants_timings",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record
        self,
        id: int,  # noqa: A002 - the field's name
        head: bytes,
        payloads: list[Payload],
        request_id: str = "",
        parameters: dict[str, Parameter] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        deadline: float | None = None,
        trace_context: bytes = b"",
        error_status: ErrorStatus | None = None,
        digest: bytes = b"",
        caller: int = 0,
        depth: int = 0,
        accepts_many: bool = False,
        resent: bool = False,
        lease: Lease | None = None,
        sequence_owner: str = "",
        wants_timings: bool = False,
        text_digest: bytes = b"",
        caller_key: bytes = b"",
        is_shadow: bool = False,
        callable_models: bytes = b"",
        confined_caller: int = 0,
        wants_sequence_place: bool = False,
        copied_sequence: int = 0,
    ) -> None:
        self.id = id
        self.head = head
        self.payloads = payloads
        self.request_id = request_id
        self.parameters = parameters
        self.priority = priority
        self.timeout_us = timeout_us
        self.deadline = deadline
        self.trace_context = trace_context
        # Error in the request's body. The scheduler gets it, because only the scheduler knows
        # whether the model is unknown, and that error comes first.
        self.error_status = error_status
        # Digest of all that affects the response; empty if the scheduler needs no digest.
        self.digest = digest
        # Instance whose model sent the request. 0 for clients, and for calls outside a request.
        self.caller = caller
        # Depth of nested calls, 0 for a client's request. Not sent.
        self.depth = depth
        # True if the client accepts any number of responses, as a decoupled model demands.
        self.accepts_many = accepts_many
        # True if the request was already sent once, and may have begun to run.
        self.resent = resent
        # Lease of the segment with the payloads. Not sent.
        self.lease = lease
        # Owner of the sequence (nereid.core.sequence_owners) or, if TrafficKeys asks for it, the
        # client of any request. Otherwise empty.
        self.sequence_owner = sequence_owner
        self.wants_timings = wants_timings
        # Digest of the files with which a text became these tensors. The scheduler refuses the
        # request if the version has others. It affects no response, so `digest` is without it.
        self.text_digest = text_digest
        # Source and key of the caller (nereid.core.traffic.caller_keys), or empty.
        self.caller_key = caller_key
        # True for a copy, which must delay no other request.
        self.is_shadow = is_shadow
        # Models that confined models may call for this request (nereid.core.callable_models), or
        # empty.
        self.callable_models = callable_models
        # Instance whose confined model sent the request, unless --sandbox-call lets the model call
        # this one. It is known even if `caller` is not, as for calls outside a request.
        self.confined_caller = confined_caller
        self.wants_sequence_place = wants_sequence_place
        # `start` in the place of the request that this one copies (SequencePlace), or 0.
        self.copied_sequence = copied_sequence


class Cancel(NamedTuple):
    """Notice that the client of request `id` has cancelled it or disconnected."""

    id: int


class FlowControl(NamedTuple):
    """Notice that the client of request `id` reads responses too slowly, or has caught up."""

    id: int
    paused: bool


class Release(NamedTuple):
    """Notice that the gateway has read the responses in these segments."""

    segment_names: tuple[str, ...]


class TracedTensor(NamedTuple):
    """Input or output of a traced request; `data` is None if left out."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | None


class TracedModel(NamedTuple):
    """Trace of one model's part in a request that is traced to a file.

    The model is the requested one, a step of an ensemble, or one that a model calls. context and
    parent are trace contexts. Times have Triton's names, in nanoseconds of the scheduler's
    monotonic clock. The gateway adds the requested model's tensors.
    """

    context: bytes
    parent: bytes
    name: str
    version: int
    request_id: str
    times: tuple[tuple[str, int], ...]
    tensors: tuple[TracedTensor, ...] = ()


class SequencePlace(NamedTuple):
    """Place of a request in its sequence.

    start: identifies the sequence, and is another number after each START. number: 1 for START.
    """

    start: int
    number: int


class RequestTimings(NamedTuple):
    """Durations of a request's phases; what is unknown is missing, 0 or empty.

    Phases have the Server-Timing header's names and do not overlap. For an ensemble, they are those
    of the steps that delayed its response.
    """

    phases: tuple[tuple[str, int], ...] = ()
    batch_size: int = 0
    instance: str = ""
    # Number of times that the request was given to an instance.
    attempt: int = 0
    # True if the response comes from the cache, or from an equal request.
    cached: bool = False


class InferResponse:
    """Response to the request with the same id: outputs, or an error.

    head: a ModelInferResponse without id and tensor data; for an error of an accepted request, it
    names the model. payloads: one raw tensor for each output, either all inline or all in
    segment_name. `more` is True in all but the last response of a decoupled model. A last one
    without head and error only ends the request.
    """

    __slots__ = (
        "error",
        "head",
        "id",
        "inputs_in_use",
        "more",
        "payloads",
        "segment_name",
        "sequence_place",
        "timings",
        "trace",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record
        self,
        id: int,  # noqa: A002 - the field's name
        head: bytes = b"",
        payloads: list[Payload] | None = None,
        error: ErrorStatus | None = None,
        segment_name: str = "",
        more: bool = False,
        trace: tuple[TracedModel, ...] = (),
    ) -> None:
        self.id = id
        self.head = head
        self.payloads = [] if payloads is None else payloads
        self.error = error
        self.segment_name = segment_name
        self.more = more
        # In the last response to a traced request. The requested model comes first.
        self.trace = trace
        # In the last response to a request that asked for them.
        self.timings: RequestTimings | None = None
        # In the last response to a request that asked for it, if it is known.
        self.sequence_place: SequencePlace | None = None
        # True if a lost instance may still read the input tensors.
        self.inputs_in_use = False

    def with_payloads(self, payloads: list[Payload]) -> InferResponse:
        """Return a copy with other, inline payloads and no error."""
        response = InferResponse(self.id, self.head, payloads, more=self.more, trace=self.trace)
        response.timings, response.inputs_in_use = self.timings, self.inputs_in_use
        response.sequence_place = self.sequence_place
        return response


class MovedResponse(InferResponse):
    """Message that returns a request to its gateway: another scheduler has the model now.

    The request has not begun to run. The error is for gateways that know only one scheduler.
    """

    __slots__ = ()


def moved_response(request_id: int) -> MovedResponse:
    """Return the message that returns a request to its gateway."""
    return MovedResponse(request_id, error=MOVED)


class CachedModels(NamedTuple):
    """Notice of models whose requests need a digest. Each notice replaces the previous one.

    shm_namespace identifies the scheduler's shared memory (nereid.shm.segments).
    """

    names: tuple[str, ...]
    shm_namespace: str = ""
    # Secret; empty if the scheduler computes the digests itself.
    digest_key: bytes = b""
    # No request has this id, so responses and notices need no extra check.
    id: int = 0


class TraceRule(NamedTuple):
    """Rule for tracing every rate-th request that its sender did not sample.

    limit of -1 means no limit. log_frequency is the traces per file, 0 for one file. `turn` changes
    when a client sets the trace count, and gateways then count from 0 again.
    """

    on: bool
    rate: int
    limit: int
    log_frequency: int = 0
    times: bool = True
    tensors: bool = False
    turn: int = 0


class TraceRules(NamedTuple):
    """Notice of the default trace rule, and of rules by model name."""

    default: TraceRule
    models: tuple[tuple[str, TraceRule], ...] = ()
    id: int = 0


class LogRules(NamedTuple):
    """Notice of all services' log settings (nereid.observability.logging.LogSettings)."""

    verbose: int
    info: bool
    warning: bool
    error: bool
    format: str
    id: int = 0


class Ownership(NamedTuple):
    """Notice of the models of one of several schedulers. It replaces the previous notice.

    Models have their qualified names. Requests to a model that no scheduler names may go to any
    scheduler.
    """

    # It stays the same after a restart.
    scheduler: str
    # The mesh's version number. If two schedulers name a model, the larger (epoch, scheduler) has
    # it.
    epoch: int
    models: tuple[str, ...]
    # True if the scheduler shuts down and accepts no new requests.
    leaving: bool = False
    id: int = 0


class LastCounts(NamedTuple):
    """Notice of the final counts of a scheduler that ends (a serialised CountsResponse)."""

    response: bytes
    id: int = 0


class ModelsChanged(NamedTuple):
    """Notice that versions of models have become ready, or are no longer.

    It is a part of the greeting, since changes may have been missed while there was no link.
    """

    # It grows with each change at this scheduler, and is never 0.
    number: int
    id: int = 0


class TrafficKeys(NamedTuple):
    """Notice of models whose requests need a caller's key. It replaces the previous notice.

    A pair is a model's name and the source of its callers' keys (`Traffic.by`). In a greeting it
    comes before CachedModels, after which a gateway sends requests.

    clients: whether each request needs its client, as InferRequest.sequence_owner.
    """

    models: tuple[tuple[str, str], ...]
    clients: bool = False
    id: int = 0


class ModelShadows(NamedTuple):
    """Notice of models' shadows, as JSON of nereid.comparison.shadow, by the models' names.

    It replaces the previous notice.
    """

    models: tuple[tuple[str, str], ...]
    id: int = 0


# About the mesh, not about a request. The id of each is 0.
Notice = (
    CachedModels
    | TraceRules
    | LogRules
    | Ownership
    | LastCounts
    | ModelsChanged
    | TrafficKeys
    | ModelShadows
)
ToScheduler = InferRequest | Cancel | FlowControl | Release
FromScheduler = InferResponse | Notice
