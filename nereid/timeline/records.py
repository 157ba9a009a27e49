"""Records of timelines: the kinds of records that services make, and details of a service.

All times are in nanoseconds of the recording service's monotonic clock; 0 means that an event did
not happen, or that its time is unknown. Ids link records of different services: a request's number
is unique in the mesh, and a batch is identified by its instance, executor and number. This module
depends on no service and on no format in which timelines are written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Values of Wait.reason, which says why requests waited while an instance was idle.
DELAY: Final = "delay"  # the batch waited for more requests
RATE_LIMITER: Final = "rate limiter"
MEMORY: Final = "memory"
LOADING: Final = "loading"  # no instance was loaded yet


class GatewayRequest(NamedTuple):
    """One request at a gateway."""

    # Number of the request; the schedulers' records have the same number.
    number: int
    model: str
    version: str
    # The protocol: "http", "grpc" or "stream".
    protocol: str
    # The request id that the client chose.
    request_id: str
    # Trace id in hexadecimal; empty if the request was not sampled.
    trace_id: str
    received_ns: int
    # Time at which the gateway had finished writing the response.
    ended_ns: int
    # gRPC status code of the response.
    status: int


class Member(NamedTuple):
    """A request that is part of a batch."""

    # The request's number in the mesh. It is 0 if the scheduler made the request itself, for a slot
    # without a request or for a step of a decoupled ensemble.
    number: int
    received_ns: int
    enqueued_ns: int
    # Number of times that the request was executed before.
    retries: int


class BatchRecord(NamedTuple):
    """A batch at the scheduler.

    An instance has executed the batch, is executing it, or was lost while it had the batch.
    """

    model: str
    version: str
    # Name of the instance, and name of the instance's executor.
    instance: str
    executor: str
    # Number of the batch on the stream of the instance.
    number: int
    size: int
    members: tuple[Member, ...]
    # Time from which the instance had no batch. If the instance was busy until it got this batch,
    # the time is equal to sent_ns.
    idle_since_ns: int
    sent_ns: int
    # Start of the execution. It is later than sent_ns if the batch waited behind another batch.
    started_ns: int
    # Arrival of the reply; 0 while the batch is being executed.
    finished_ns: int
    # Durations that the instance reported.
    input_ns: int
    infer_ns: int
    output_ns: int
    # The reason why the instance was lost, or why the batch failed; otherwise empty.
    error: str = ""


class EndedRequest(NamedTuple):
    """A request that ended at the scheduler without an execution of its own.

    There are three cases. The response came from the cache. Or the request was refused, cancelled
    or timed out in the queue. Or the request was for an ensemble, whose steps were executed
    instead.
    """

    number: int
    model: str
    version: str
    received_ns: int
    enqueued_ns: int
    ended_ns: int
    # The outcome: "cache hit", "ensemble", "cancelled", or the message of an error.
    outcome: str
    status: int


class Wait(NamedTuple):
    """A period in which requests of a model waited at the scheduler.

    Either they waited in the queue although an instance was idle, or they waited, before the queue,
    for their model to be loaded.
    """

    model: str
    # The version; empty means any version.
    version: str
    reason: str
    from_ns: int
    to_ns: int
    # Number of requests that waited at the end of the period.
    requests: int


class ExecutionRecord(NamedTuple):
    """A batch at an executor.

    Each time is the end of a phase, which begins where the previous ended.
    """

    model: str
    version: str
    instance: str
    number: int
    # Number of requests in the batch.
    size: int
    # Time at which the whole frame had been read.
    received_ns: int
    # Ends of four phases, in the order of the fields. At these times, the inputs are ready (as
    # views, joined, or copied to the device), the model has run, the outputs are split and copied,
    # and the reply is written.
    input_ns: int
    infer_ns: int
    output_ns: int
    written_ns: int
    # Sizes of the incoming and outgoing frames, without tensors passed by reference; 0 if unknown.
    bytes_in: int = 0
    bytes_out: int = 0


class Event(NamedTuple):
    """An event that is not part of a request, such as a load, or a member that joined or was lost.

    to_ns is 0 for an event without a duration.
    """

    # The kind: "load", "unload", "load failed", "executor joined", "executor lost", "instance
    # lost", "scheduler takeover", "link lost".
    what: str
    subject: str
    from_ns: int
    to_ns: int
    detail: str


Record = GatewayRequest | BatchRecord | EndedRequest | Wait | ExecutionRecord | Event


@dataclass(slots=True)
class ServiceTimeline:
    """The records of one service, and details of the service."""

    # The service's kind ("gateway", "scheduler" or "executor") and its name in the mesh.
    kind: str
    name: str
    # Offset that converts this service's times to the clock of the service that was asked for the
    # timeline; 0 if both run on one host.
    offset_ns: int = 0
    # Maximum error of the offset.
    error_ns: int = 0
    # The records are complete between these two times.
    from_ns: int = 0
    to_ns: int = 0
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Timeline:
    """Records of all services of a mesh.

    epoch_ns: number to add to times of the service that was asked for the timeline, to get UNIX
    time. missing: services that did not respond, each with the reason.
    """

    epoch_ns: int = 0
    services: list[ServiceTimeline] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
