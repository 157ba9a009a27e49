"""Messages between gateway and scheduler.

An in-memory link passes the objects themselves; nereid.core.wire.codecs has the frames of other links. A
head is a serialised protobuf message without the parts that differ from request to request, so that
a service can cache what it derives from a head by its bytes.

What is made for each request is no data class: the __init__ of one is interpreted even where the
class is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core.errors import Unavailable
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.shm.segments import Lease

Parameter = bool | int | float | str

# The parameter of a requested output by which a client requests its top classes.
CLASSIFICATION: Final = "classification"

# Why a decoupled model refuses a request for a single response; the fronts name the protocol.
DECOUPLED: Final = "doesn't support models with decoupled transaction policy"


# A memoryview only inside the gateway, once it has mapped a response's tensors.
Payload = bytes | memoryview | SharedMemory


def payload_bytes(payload: Payload) -> int:
    """The size of a tensor, inline or in shared memory."""
    return payload.size_bytes if isinstance(payload, SharedMemory) else len(payload)


class ErrorStatus(NamedTuple):
    """A failure as the client sees it; code is a gRPC status code."""

    code: int
    message: str
    # See errors.NereidError.
    accepted: bool = False
    # The model's own response: its request counts as executed.
    by_model: bool = False
    # See errors.Unavailable.
    retry_after_ms: int = 0


def error_status_of(error: NereidError) -> ErrorStatus:
    """The status of this error."""
    return ErrorStatus(
        error.code, error.message, error.accepted, retry_after_ms=error.retry_after_ms
    )


MOVED: Final = ErrorStatus(Unavailable.code, "another scheduler of the mesh serves the model now")


class Arrival:
    """How a request came to its gateway: by "http" or "grpc", when it was complete, the call of
    that protocol, and whether that is a stream of requests.
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

    id is unique in the mesh, request_id is the client's text. head is a
    ModelInferRequest without id, parameters and tensor data; payloads holds one raw tensor for each
    of its inputs. timeout_us is Triton's limit on queueing time, deadline (time.monotonic seconds)
    the client's limit on everything.
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
        id: int,  # noqa: A002 - by what it is called
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
        # An error that the gateway found in the body. Reported by the scheduler, because an unknown
        # model comes first.
        self.error_status = error_status
        # Of everything in the request that affects its response; empty: the scheduler does not want
        # it.
        self.digest = digest
        # The number of the instance whose model sent it; 0: a client, or a model outside a request.
        self.caller = caller
        # How many models' calls this one is nested in. Scheduler only: it is not sent.
        self.depth = depth
        # The client accepts any number of responses; decoupled models refuse all other requests.
        self.accepts_many = accepts_many
        # It was sent before, to a scheduler or to an instance, and may have begun to run.
        self.resent = resent
        # For whom it is pending: an account (nereid.rpc.net.limits.budget) or an authenticated principal.
        # Gateway only: it is not sent.
        self.sender = sender
        # The regions of clients' shared memory that it names. Gateway only: it is not sent.
        self.region_use = region_use
        # The client wants an empty final response of a decoupled model. Gateway only: it is not
        # sent.
        self.wants_empty_final = wants_empty_final
        # Of the segment with the payloads. Gateway only: it is not sent.
        self.lease = lease
        # In the gateway, where requests are traced or recorded. It never travels.
        self.arrival = arrival
        # Whose sequence it belongs to (nereid.core.sequence_owners); empty: nobody's in particular.
        self.sequence_owner = sequence_owner
        # The last response is to have RequestTimings.
        self.wants_timings = wants_timings

    def __reduce__(self) -> tuple[type[InferRequest], tuple[Any, ...]]:
        """Decoder processes send requests to their gateway; compiled classes need this for it."""
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
    """The client of request id has cancelled it or disconnected."""

    id: int


class FlowControl(NamedTuple):
    """The client of request id does not keep up with the responses, or does so again."""

    id: int
    paused: bool


class Release(NamedTuple):
    """The gateway has read the responses in these segments."""

    segment_names: tuple[str, ...]


class TracedTensor(NamedTuple):
    """An input or output in a trace; data None: left out."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | None


class TracedModel(NamedTuple):
    """One model's part in a request that is traced to a file: the requested model, a step of an
    ensemble, or a model that another model calls.

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
    """Where a request's time went, as far as its scheduler knows. What did not happen, or is not
    known, is missing: a phase, or 0, or an empty text.

    Phases have the names of Server-Timing's entries. They do not overlap, so that their sum is no
    more than the time that the request took; of an ensemble they are those of the steps that its
    response waited for, one after the other.
    """

    phases: tuple[tuple[str, int], ...] = ()
    batch_size: int = 0
    instance: str = ""
    # How often it was given to an instance, this time included.
    attempt: int = 0
    # It was found in the response cache, or shares the response of a request like it.
    cached: bool = False


class InferResponse:
    """A response to the request of the same id: outputs, or an error.

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
        id: int,  # noqa: A002 - by what it is called
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
        # With the last response to a request that is traced to a file; the requested model first.
        self.trace = trace
        # With the last response to a request that wants them.
        self.timings: RequestTimings | None = None
        # An instance that was lost while it executed the request may still read its tensors.
        self.inputs_in_use = False

    def with_payloads(self, payloads: list[Payload]) -> InferResponse:
        """As this response, which has no error, with other payloads, none of them in a segment."""
        response = InferResponse(self.id, self.head, payloads, more=self.more, trace=self.trace)
        response.timings, response.inputs_in_use = self.timings, self.inputs_in_use
        return response


class MovedResponse(InferResponse):
    """Not a response: the request has not begun to run, and another scheduler has its model now,
    to which it is to be sent. The error is for a gateway that knows one scheduler only.
    """

    __slots__ = ()


def moved_response(request_id: int) -> MovedResponse:
    """For a request that the scheduler returns to its gateway."""
    return MovedResponse(request_id, error=MOVED)


class CachedModels(NamedTuple):
    """The models whose requests need a digest, the key for it, and the scheduler's memory domain
    (nereid.shm.segments.shm_namespace). Replaces the previous notice.
    """

    names: tuple[str, ...]
    shm_namespace: str = ""
    # Secret. Empty: the scheduler computes the digests.
    digest_key: bytes = b""
    # An id that no request has: code that looks responses up by id needs no extra test.
    id: int = 0


class TraceRule(NamedTuple):
    """Which requests are traced that arrive unsampled: every rate-th, up to limit (-1: no limit).
    log_frequency: traces per file (0: all in one); times, tensors: what the files contain.
    turn: distinguishes equal rules that were set one after the other.
    """

    on: bool
    rate: int
    limit: int
    log_frequency: int = 0
    times: bool = True
    tensors: bool = False
    turn: int = 0


class TraceRules(NamedTuple):
    """The default rule, and the rules of the models that have one of their own."""

    default: TraceRule
    models: tuple[tuple[str, TraceRule], ...] = ()
    id: int = 0


class LogRules(NamedTuple):
    """What all services log; see nereid.observability.logging.LogSettings."""

    verbose: int
    info: bool
    warning: bool
    error: bool
    format: str
    id: int = 0


class Ownership(NamedTuple):
    """Which models' requests a scheduler of several accepts, by their qualified names. Replaces the
    previous notice of this scheduler. Requests to a model that none names go to any of them.
    """

    # Its name, which it keeps when it restarts.
    scheduler: str
    # Of two that name a model, the one with the larger (epoch, scheduler) has it.
    epoch: int
    models: tuple[str, ...]
    # It is shutting down, and accepts no new requests.
    leaving: bool = False
    id: int = 0


class LastCounts(NamedTuple):
    """What a scheduler has counted that ends now: a CountsResponse."""

    response: bytes
    id: int = 0


# Messages about the mesh, not about a request. All have the id 0.
Notice = CachedModels | TraceRules | LogRules | Ownership | LastCounts
ToScheduler = InferRequest | Cancel | FlowControl | Release
FromScheduler = InferResponse | Notice
