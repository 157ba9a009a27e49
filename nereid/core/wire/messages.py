"""Messages between gateway and scheduler.

A link in memory passes the objects themselves; nereid.core.wire.codecs encodes them for other
links. A head is a serialised protobuf message without the parts that differ from request to
request. Services can therefore cache results that they derive from a head, with the head's bytes as
the key.

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

# Name of the parameter with which a client requests the top classes of an output.
CLASSIFICATION: Final = "classification"

# Reason why a decoupled model refuses a request for a single response. The HTTP and gRPC front ends
# put the name of their protocol before it.
DECOUPLED: Final = "doesn't support models with decoupled transaction policy"


# Bytes of one tensor. A memoryview occurs only inside the gateway, after it has mapped the tensors
# of a response.
Payload = bytes | memoryview | SharedMemory


def payload_bytes(payload: Payload) -> int:
    """Return the size in bytes of a tensor, inline or in shared memory."""
    return payload.size_bytes if isinstance(payload, SharedMemory) else len(payload)


class ErrorStatus(NamedTuple):
    """Failure in the form in which the client sees it; `code` is a gRPC status code."""

    code: int
    message: str
    # See errors.NereidError.
    accepted: bool = False
    # True if the model itself responded with the error. The request then counts as executed.
    by_model: bool = False
    # See errors.Unavailable.
    retry_after_ms: int = 0


def error_status_of(error: NereidError) -> ErrorStatus:
    """Return the status that describes this error."""
    return ErrorStatus(
        error.code, error.message, error.accepted, retry_after_ms=error.retry_after_ms
    )


MOVED: Final = ErrorStatus(Unavailable.code, "another scheduler of the mesh serves the model now")


class Arrival:
    """Arrival of a request at its gateway.

    protocol: "http" or "grpc".
    received_ns: time at which the whole request had arrived, in nanoseconds.
    call: the protocol's call object.
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
    """Inference request that a gateway sends to the scheduler.

    id: unique in the mesh.
    request_id: text with which the client identifies the request.
    head: a ModelInferRequest without id, parameters and tensor data.
    payloads: one raw tensor for each of the head's inputs.
    timeout_us: limit of the time in the queue, in microseconds, as in Triton.
    deadline: time.monotonic() at which the client stops waiting for the response.
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
        # Error that the gateway found in the request's body. The gateway sends the error on to the
        # scheduler, because an unknown model has to be reported first, and only the scheduler knows
        # the models.
        self.error_status = error_status
        # Digest of all parts of the request that affect its response; empty if the scheduler does
        # not need a digest.
        self.digest = digest
        # Number of the instance whose model sent the request. It is 0 for requests of clients, and
        # for calls that a model makes while it executes no request.
        self.caller = caller
        # Depth of nested calls: 0 for a client's request, 1 for a request that a model makes while
        # it executes a client's request, and so on. Used in the scheduler only: it is not sent.
        self.depth = depth
        # True if the client accepts any number of responses. A decoupled model refuses the request
        # otherwise.
        self.accepts_many = accepts_many
        # True if the request was already sent once, to a scheduler or an instance, and may have
        # begun to run there.
        self.resent = resent
        # Sender to whom the pending request is charged: an account (nereid.rpc.net.limits.budget)
        # or an authenticated principal. Used in the gateway only: it is not sent.
        self.sender = sender
        # Clients' shared memory regions that the request names. Used in the gateway only: not sent.
        self.region_use = region_use
        # True if the client wants a decoupled model's final response even if it is empty. Used in
        # the gateway only: it is not sent.
        self.wants_empty_final = wants_empty_final
        # Lease of the segment that contains the payloads. Used in the gateway only: it is not sent.
        self.lease = lease
        # Arrival at the gateway, set if requests are traced or recorded. Used in the gateway only:
        # it is not sent.
        self.arrival = arrival
        # Owner of the request's sequence (nereid.core.sequence_owners); empty if the sequence has
        # no owner.
        self.sequence_owner = sequence_owner
        # True if the last response should contain RequestTimings.
        self.wants_timings = wants_timings

    def __reduce__(self) -> tuple[type[InferRequest], tuple[Any, ...]]:
        """Return how to pickle the request: without this, a compiled class cannot be pickled.

        Requests are pickled when decoder processes send them.
        """
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
    """Input or output of a request in a trace; `data` is None if it was left out of the trace."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | None


class TracedModel(NamedTuple):
    """Trace of one model's part in a request that is traced to a file.

    The model is the requested one, a step of an ensemble, or a model that another model calls.

    The fields context and parent are trace contexts (nereid.observability.tracing). Times have
    Triton's names and are nanoseconds of the scheduler's monotonic clock. The scheduler leaves out
    the tensors of the requested model, which the gateway adds.
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

    Phases and values that did not occur or are unknown are missing, 0 or empty.

    Phases have the same names as the entries of the Server-Timing header. Phases do not overlap, so
    their sum is at most the duration of the request. For an ensemble, the phases are those of the
    steps that delayed its response, one after the other.
    """

    phases: tuple[tuple[str, int], ...] = ()
    batch_size: int = 0
    instance: str = ""
    # Number of times that the request was given to an instance, including the last time.
    attempt: int = 0
    # True if the response comes from the response cache, or from an equal request that ran.
    cached: bool = False


class InferResponse:
    """Response to the request with the same id: outputs, or an error.

    The field head is a ModelInferResponse without id and tensor data. The field payloads has one
    raw tensor for each output: either all of them are inline, or all are in the segment
    segment_name. If there is an error, head names the model if the request was accepted.

    A request to a decoupled model has any number of responses; `more` is True in all but the last.
    If the last one has neither head nor error, it only ends the request.
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
        # Traces in the last response to a request that is traced to a file. The trace of the
        # requested model comes first.
        self.trace = trace
        # Timings in the last response to a request that asked for them.
        self.timings: RequestTimings | None = None
        # True if an instance was lost while it executed the request, and may still read the input
        # tensors.
        self.inputs_in_use = False

    def with_payloads(self, payloads: list[Payload]) -> InferResponse:
        """Return a copy of this response with other payloads, which are inline, and no error."""
        response = InferResponse(self.id, self.head, payloads, more=self.more, trace=self.trace)
        response.timings, response.inputs_in_use = self.timings, self.inputs_in_use
        return response


class MovedResponse(InferResponse):
    """Message with which a scheduler returns a request to its gateway, in place of a response.

    The request has not begun to run. Another scheduler has the model now, so the gateway has to
    send the request there. The error is for gateways that know only one scheduler.
    """

    __slots__ = ()


def moved_response(request_id: int) -> MovedResponse:
    """Return the message with which a scheduler returns a request to its gateway."""
    return MovedResponse(request_id, error=MOVED)


class CachedModels(NamedTuple):
    """Notice of the models whose requests need a digest, of the digest key, and of a memory domain.

    The domain identifies the scheduler's shared memory: it is the text that
    nereid.shm.segments.shm_namespace() returned in the scheduler. Each notice replaces the
    scheduler's previous one.
    """

    names: tuple[str, ...]
    shm_namespace: str = ""
    # Secret key for digests; empty if the scheduler computes the digests itself.
    digest_key: bytes = b""
    # No request has this id, so code that looks up responses by id needs no extra check for
    # notices.
    id: int = 0


class TraceRule(NamedTuple):
    """Rule for tracing requests that are not sampled by their sender: every rate-th, up to `limit`.

    limit: maximum number of traces; -1 means no limit.
    log_frequency: number of traces per file; 0 means all in one file.
    times, tensors: whether the files contain times, and tensors.
    turn: number that changes each time a client sets the trace count. Gateways then count from 0
    again, even if the rule is otherwise the same.
    """

    on: bool
    rate: int
    limit: int
    log_frequency: int = 0
    times: bool = True
    tensors: bool = False
    turn: int = 0


class TraceRules(NamedTuple):
    """Notice of the default trace rule, and of rules for single models (by the models' names)."""

    default: TraceRule
    models: tuple[tuple[str, TraceRule], ...] = ()
    id: int = 0


class LogRules(NamedTuple):
    """Notice of the log settings of all services; see nereid.observability.logging.LogSettings."""

    verbose: int
    info: bool
    warning: bool
    error: bool
    format: str
    id: int = 0


class Ownership(NamedTuple):
    """Notice of the models whose requests a scheduler accepts, if the mesh has several schedulers.

    Models have their qualified names. The notice replaces the scheduler's previous one. Requests to
    a model that no scheduler names may go to any scheduler.
    """

    # Name of the scheduler, which stays the same after a restart.
    scheduler: str
    # Version number of the mesh as the scheduler sees it. If two schedulers name the same model,
    # the one with the larger (epoch, scheduler) has it.
    epoch: int
    models: tuple[str, ...]
    # True if the scheduler is shutting down and accepts no new requests.
    leaving: bool = False
    id: int = 0


class LastCounts(NamedTuple):
    """Notice of the final counts of a scheduler that ends: a serialised CountsResponse."""

    response: bytes
    id: int = 0


# Messages about the mesh, not about a request. The id of each is 0.
Notice = CachedModels | TraceRules | LogRules | Ownership | LastCounts
ToScheduler = InferRequest | Cancel | FlowControl | Release
FromScheduler = InferResponse | Notice
