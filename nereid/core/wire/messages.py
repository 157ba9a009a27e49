"""Messages between gateway and scheduler.

An in-memory link passes the objects themselves; nereid.core.wire.codecs has the frames of other
links. A head is a serialised protobuf message without the parts that differ from request to
request, so that a service can cache what it derives from a head by its bytes.

Classes whose objects are created for each request are not data classes: the __init__ of a data
class is interpreted even where the class is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core.errors import Unavailable
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.shm.segments import Lease

Parameter = bool | int | float | str

# Parameter of a requested output by which a client requests its top classes.
CLASSIFICATION: Final = "classification"

# Reason for which a decoupled model refuses a request for a single response; the fronts name the
# protocol.
DECOUPLED: Final = "doesn't support models with decoupled transaction policy"


# Tensor bytes; a memoryview only inside the gateway, once it has mapped a response's tensors.
Payload = bytes | memoryview | SharedMemory


def payload_bytes(payload: Payload) -> int:
    """Return the size of a tensor, inline or in shared memory."""
    return payload.size_bytes if isinstance(payload, SharedMemory) else len(payload)


class ErrorStatus(NamedTuple):
    """Failure as the client sees it; `code` is a gRPC status code."""

    code: int
    message: str
    # See errors.NereidError.
    accepted: bool = False
    # True if the model itself responded with the error: its request counts as executed.
    by_model: bool = False
    # See errors.Unavailable.
    retry_after_ms: int = 0


def error_status_of(error: NereidError) -> ErrorStatus:
    """Return the status of this error."""
    return ErrorStatus(
        error.code, error.message, error.accepted, retry_after_ms=error.retry_after_ms
    )


MOVED: Final = ErrorStatus(Unavailable.code, "another scheduler of the mesh serves the model now")


class Arrival:
    """Arrival of a request at its gateway.

    protocol: "http" or "grpc".
    received_ns: time at which the request was complete.
    call: the call of that protocol.
    streamed: whether the call is a stream of requests.
    """

    __slots__ = ("call", "protocol", "received_ns", "streamed")

    def __init__(
        self,
        protocol: str,
        received_ns: int,
        call: Any = None,
        streamed: bool = False,
    ) -> None:
        self.protocol = protocol
        self.received_ns = received_ns
        self.call = call
        self.streamed = streamed


class InferRequest:
    """One inference request of a gateway to the scheduler.

    id: unique in the mesh.
    request_id: the client's text.
    head: a ModelInferRequest without id, parameters and tensor data.
    payloads: one raw tensor for each of the head's inputs.
    timeout_us: Triton's limit of the queueing time.
    deadline: the client's limit of everything, in time.monotonic() seconds.
    """

    __slots__ = (
        "accepts_many",
        "arrival",
        "caller",
        "deadline",
        "depth",
        "digest",
        "error_status",
        "head",
        "id",
        "lease",
        "parameters",
        "payloads",
        "priority",
        "region_use",
        "request_id",
        "resent",
        "sender",
        "sequence_owner",
        "timeout_us",
        "trace_context",
        "wants_empty_final",
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
        sender: Any = None,
        region_use: Any = None,
        wants_empty_final: bool = False,
        lease: Lease | None = None,
        arrival: Arrival | None = None,
        sequence_owner: str = "",
        wants_timings: bool = False,
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
        # Error that the gateway found in the body. The scheduler reports it, because an unknown
        # model comes first.
        self.error_status = error_status
        # Digest of everything in the request that affects its response; empty if the scheduler does
        # not want it.
        self.digest = digest
        # Number of the instance whose model sent the request; 0 for a client, or a model outside a
        # request.
        self.caller = caller
        # Number of models' calls in which this one is nested. Scheduler only: it is not sent.
        self.depth = depth
        # True if the client accepts any number of responses; decoupled models refuse all other
        # requests.
        self.accepts_many = accepts_many
        # True if the request was sent before, to a scheduler or to an instance, and may have begun
        # to run.
        self.resent = resent
        # Sender for whom it is pending: an account (nereid.rpc.net.limits.budget) or an
        # authenticated principal. Gateway only: it is not sent.
        self.sender = sender
        # Regions of clients' shared memory that the request names. Gateway only: it is not sent.
        self.region_use = region_use
        # True if the client wants an empty final response of a decoupled model. Gateway only: it is
        # not sent.
        self.wants_empty_final = wants_empty_final
        # Lease of the segment with the payloads. Gateway only: it is not sent.
        self.lease = lease
        # Arrival at the gateway, if requests are traced or recorded. Gateway only: it is not sent.
        self.arrival = arrival
        # Owner of the request's sequence (nereid.core.sequence_owners); empty if nobody owns it in
        # particular.
        self.sequence_owner = sequence_owner
        # True if the last response is to have RequestTimings.
        self.wants_timings = wants_timings

    def __reduce__(self) -> tuple[type[InferRequest], tuple[Any, ...]]:
        """Pickle the request; compiled classes need this for decoder processes to send it."""
        return InferRequest, (
            self.id,
            self.head,
            self.payloads,
            self.request_id,
            self.parameters,
            self.priority,
            self.timeout_us,
            self.deadline,
            self.trace_context,
            self.error_status,
            self.digest,
            self.caller,
            self.depth,
            self.accepts_many,
            self.resent,
            self.sender,
            self.region_use,
            self.wants_empty_final,
            self.lease,
            self.arrival,
            self.sequence_owner,
            self.wants_timings,
        )


class Cancel(NamedTuple):
    """The client of request `id` has cancelled it or disconnected."""

    id: int


class FlowControl(NamedTuple):
    """The client of request `id` does not keep up with the responses, or does so again."""

    id: int
    paused: bool


class Release(NamedTuple):
    """The gateway has read the responses in these segments."""

    segment_names: tuple[str, ...]


class TracedTensor(NamedTuple):
    """Input or output in a trace; `data` is None if it was left out."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | None


class TracedModel(NamedTuple):
    """Part of one model in a request that is traced to a file.

    The model is the requested one, a step of an ensemble, or a model that another model calls.

    context and parent are trace contexts (nereid.observability.tracing). Times have Triton's names
    and are nanoseconds of the scheduler's monotonic clock. The gateway adds the tensors of the
    requested model itself.
    """

    context: bytes
    parent: bytes
    name: str
    version: int
    request_id: str
    times: tuple[tuple[str, int], ...]
    tensors: tuple[TracedTensor, ...] = ()


class RequestTimings(NamedTuple):
    """Durations of the phases of a request, as far as its scheduler knows them.

    A phase or value that did not occur, or is not known, is missing, 0 or empty.

    Phases have the names of Server-Timing's entries. They do not overlap, so that their sum is no
    more than the time that the request took. An ensemble's phases are those of the steps that its
    response waited for, one after the other.
    """

    phases: tuple[tuple[str, int], ...] = ()
    batch_size: int = 0
    instance: str = ""
    # Number of times that the request was given to an instance, including this one.
    attempt: int = 0
    # True if the response was found in the response cache, or is shared with an equal request.
    cached: bool = False


class InferResponse:
    """Response to the request of the same id: outputs, or an error.

    head is a ModelInferResponse without id and tensor data; payloads holds one raw tensor for each
    of its outputs: all of them inline, or all in the segment segment_name. With an error, head
    names the model if the request was accepted.

    A decoupled model's request has any number of responses; all but the last have `more`. The last
    may lack both head and error: then it only ends the request.
    """

    __slots__ = (
        "error",
        "head",
        "id",
        "inputs_in_use",
        "more",
        "payloads",
        "segment_name",
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
        # Traces in the last response to a request that is traced to a file; the requested model
        # comes first.
        self.trace = trace
        # Timings in the last response to a request that wants them.
        self.timings: RequestTimings | None = None
        # True if an instance that was lost while it executed the request may still read its
        # tensors.
        self.inputs_in_use = False

    def with_payloads(self, payloads: list[Payload]) -> InferResponse:
        """Return a copy of this response without error, with other, inline payloads."""
        response = InferResponse(self.id, self.head, payloads, more=self.more, trace=self.trace)
        response.timings, response.inputs_in_use = self.timings, self.inputs_in_use
        return response


class MovedResponse(InferResponse):
    """Return of a request to its gateway, in place of a response.

    The request has not begun to run, and another scheduler has its model now, to which it is to be
    sent. The error is for a gateway that knows only one scheduler.
    """

    __slots__ = ()


def moved_response(request_id: int) -> MovedResponse:
    """Return the response for a request that the scheduler returns to its gateway."""
    return MovedResponse(request_id, error=MOVED)


class CachedModels(NamedTuple):
    """Models whose requests need a digest, the key for it, and the scheduler's memory domain.

    The domain is that of nereid.shm.segments.shm_namespace. Replaces the previous notice.
    """

    names: tuple[str, ...]
    shm_namespace: str = ""
    # Secret key of digests; empty if the scheduler computes the digests.
    digest_key: bytes = b""
    # Id that no request has, so that code that looks responses up by id needs no extra test.
    id: int = 0


class TraceRule(NamedTuple):
    """Rule for tracing requests that arrive unsampled: every rate-th, up to `limit` (-1: no limit).

    log_frequency: traces per file (0: all in one).
    times, tensors: content of the files.
    turn: number that distinguishes equal rules that were set one after the other.
    """

    on: bool
    rate: int
    limit: int
    log_frequency: int = 0
    times: bool = True
    tensors: bool = False
    turn: int = 0


class TraceRules(NamedTuple):
    """The default rule, and the rules of models that have their own."""

    default: TraceRule
    models: tuple[tuple[str, TraceRule], ...] = ()
    id: int = 0


class LogRules(NamedTuple):
    """Log settings of all services; see nereid.observability.logging.LogSettings."""

    verbose: int
    info: bool
    warning: bool
    error: bool
    format: str
    id: int = 0


class Ownership(NamedTuple):
    """Models whose requests a scheduler of several accepts, by their qualified names.

    Replaces the previous notice of this scheduler. Requests to a model that no scheduler names go
    to any of them.
    """

    # Name of the scheduler, which it keeps when it restarts.
    scheduler: str
    # Number of the scheduler's view of the mesh. If two schedulers name a model, the one with the
    # larger (epoch, scheduler) has it.
    epoch: int
    models: tuple[str, ...]
    # True if the scheduler is shutting down and accepts no new requests.
    leaving: bool = False
    id: int = 0


class LastCounts(NamedTuple):
    """Final counts of a scheduler that ends: a serialised CountsResponse."""

    response: bytes
    id: int = 0


# Messages about the mesh, not about a request. All have the id 0.
Notice = CachedModels | TraceRules | LogRules | Ownership | LastCounts
ToScheduler = InferRequest | Cancel | FlowControl | Release
FromScheduler = InferResponse | Notice
