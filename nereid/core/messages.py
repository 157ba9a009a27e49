"""What travels between gateway and scheduler, as objects.

The memory link hands these over as they are; nereid.core.codecs turns them into frames for a wire.
A head is a protobuf message serialised without the parts that differ from request to request, so
that each service can remember, by its bytes, what it derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.shm.segments import Lease

Parameter = bool | int | float | str

# The parameter of a requested output by which a client asks for its best classes.
CLASSIFICATION: Final = "classification"

# Why a decoupled model refuses a request that takes a single answer; fronts say whose request.
DECOUPLED: Final = "doesn't support models with decoupled transaction policy"


class SharedMemory(NamedTuple):
    """A range of a segment (nereid.shm.segments) that both ends of a hop can map."""

    segment_name: str
    offset: int
    size_bytes: int


# A view only where the gateway has an answer's tensors in hand.
Payload = bytes | memoryview | SharedMemory


def payload_bytes(payload: Payload) -> int:
    """How large a tensor is, wherever it lies."""
    return payload.size_bytes if isinstance(payload, SharedMemory) else len(payload)


class ErrorStatus(NamedTuple):
    """A failure to be told to the client; code is a gRPC status code."""

    code: int
    message: str
    # Found after the request was accepted; see errors.NereidError.
    accepted: bool = False


def error_status_of(error: NereidError) -> ErrorStatus:
    """The fault that tells this error."""
    return ErrorStatus(error.code, error.message, error.accepted)


class Arrival(NamedTuple):
    """How a request came to its gateway: by "http" or "grpc", and when it was complete."""

    protocol: str
    received_ns: int


@dataclass(slots=True, eq=False)
class InferRequest:
    """One inference request on its way from a gateway to the scheduler.

    id is the gateway's own number for it, request_id the client's text. head is a
    ModelInferRequest without id, parameters and tensor data; payloads holds one raw tensor for each
    of its inputs. timeout_us is Triton's limit on queueing time, deadline (time.monotonic seconds)
    the client's limit on everything.
    """

    id: int
    head: bytes
    payloads: list[Payload]
    request_id: str = ""
    parameters: dict[str, Parameter] | None = None
    priority: int = 0
    timeout_us: int = 0
    deadline: float | None = None
    trace_context: bytes = b""
    # A defect found in the body at the edge, to be told once the model is known to exist.
    error_status: ErrorStatus | None = None
    # Over all of the request that its answer depends on; empty: the scheduler did not ask for it.
    digest: bytes = b""
    # The instance (its number) whose model asks; 0: a client does, or nobody knows for which
    # of its requests the model does.
    caller: int = 0
    # How many models' requests stand behind this one; the scheduler's own, it does not travel.
    depth: int = 0
    # Any number of answers is welcome. Decoupled models refuse all other requests.
    accepts_many: bool = False
    # Where outputs go in clients' shared memory; the gateway's own affair, it does not travel.
    placements: list[Any] | None = None
    # The gateway's own, never sent: an empty reply shall tell the end of a decoupled model's.
    empty_final: bool = False
    # In the gateway: the segment that payloads lie in. It never travels.
    lease: Lease | None = None
    # In the gateway, where requests are traced. It never travels.
    arrival: Arrival | None = None


class Cancel(NamedTuple):
    """The client of request id is gone; its answer would have no taker."""

    id: int


class FlowControl(NamedTuple):
    """The client of request id cannot keep up with the answers, or it can again."""

    id: int
    paused: bool


class Release(NamedTuple):
    """The gateway has done with these segments, which answers came in."""

    segment_names: tuple[str, ...]


class TracedTensor(NamedTuple):
    """An input or output in a trace; data None: it is not told."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | None


class TracedModel(NamedTuple):
    """A model's part in a request that is to be traced in a file: the model that was asked for, a
    step of an ensemble, or a model that a model has asked.

    context and parent are trace contexts (nereid.observability.tracing). Times have Triton's names
    and are nanoseconds of the scheduler's monotonic clock. The gateway knows the tensors of the
    model that was asked for.
    """

    context: bytes
    parent: bytes
    name: str
    version: int
    request_id: str
    times: tuple[tuple[str, int], ...]
    tensors: tuple[TracedTensor, ...] = ()


@dataclass(slots=True, eq=False)
class InferResponse:
    """The answer to the request of the same id: outputs, or an error.

    head is a ModelInferResponse without id and tensor data; payloads holds one raw tensor for each
    of its outputs: all of them inline, or all in the one segment that slab names. With an error,
    head names the model if the request had been accepted.
    A decoupled model's request has any number of answers, of which the last one alone lacks `more`;
    that one may be without head and error, and then says only that there are no more.
    """

    id: int
    head: bytes = b""
    payloads: list[Payload] = field(default_factory=list)
    error: ErrorStatus | None = None
    segment_name: str = ""
    more: bool = False
    # With the last answer to a request that is to be traced in a file; the one asked for first.
    trace: tuple[TracedModel, ...] = ()


class CachedModels(NamedTuple):
    """The models whose requests the scheduler wants a digest of, and the memory that it can share
    (nereid.shm.segments.memory_domain); what it said before is void.
    """

    names: tuple[str, ...]
    memory_domain: str = ""
    # As if it were an answer to a request that never is: whoever reads answers needs no extra test.
    id: int = 0


class TraceRule(NamedTuple):
    """Which requests are traced that nobody asked to trace: every rate-th of them, limit in all
    (-1: without a limit). In files, so many to each (0: all to one), with times, tensors or both.
    turn: tells apart equal limits that were set one after the other.
    """

    on: bool
    rate: int
    limit: int
    log_frequency: int = 0
    times: bool = True
    tensors: bool = False
    turn: int = 0


class TraceRules(NamedTuple):
    """The rule for all models but those that have one of their own."""

    default: TraceRule
    models: tuple[tuple[str, TraceRule], ...] = ()
    id: int = 0


class LogRules(NamedTuple):
    """What services log, and in which form; see telemetry.LogSettings."""

    verbose: int
    info: bool
    warning: bool
    error: bool
    format: str
    id: int = 0


# What concerns the mesh and no request. All have the id 0, as CachedModels has.
Notice = CachedModels | TraceRules | LogRules
ToScheduler = InferRequest | Cancel | FlowControl | Release
FromScheduler = InferResponse | Notice
