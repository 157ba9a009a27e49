"""Records of timelines: the kinds of records that services make, and details of a service.

Times are in nanoseconds of the recording service's monotonic clock; 0 is unknown or never. A
request's number is unique in the mesh. Instance, executor and number identify a batch.
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

    # The schedulers' records have the same number.
    number: int
    model: str
    version: str
    # "http", "grpc" or "stream".
    protocol: str
    # The client chooses this id.
    request_id: str
    # Hexadecimal; empty if the request was not sampled.
    trace_id: str
    received_ns: int
    # Time at which the response was written.
    ended_ns: int
    # gRPC status code of the response.
    status: int


class Member(NamedTuple):
    """A request that is part of a batch."""

    # Number in the mesh. 0 if the scheduler made the request itself, for a slot without a request
    # or a step of a decoupled ensemble.
    number: int
    received_ns: int
    enqueued_ns: int
    # Number of executions before this one.
    retries: int


class BatchRecord(NamedTuple):
    """A batch at the scheduler: executed, being executed, or lost with its instance."""

    model: str
    version: str
    instance: str
    executor: str
    # Number of the batch on the stream of the instance.
    number: int
    size: int
    members: tuple[Member, ...]
    # Time from which the instance had no batch; equal to sent_ns if it was busy until then.
    idle_since_ns: int
    sent_ns: int
    # Start of the execution. Later than sent_ns if the batch waited behind another batch.
    started_ns: int
    # Arrival of the reply; 0 while the batch is being executed.
    finished_ns: int
    # Durations that the instance reported.
    input_ns: int
    infer_ns: int
    output_ns: int
    # Why the instance was lost or the batch failed.
    error: str = ""


class EndedRequest(NamedTuple):
    """A request without an execution: cached, refused, cancelled, timed out, or for an ensemble."""

    number: int
    model: str
    version: str
    received_ns: int
    enqueued_ns: int
    ended_ns: int
    # "cache hit", "ensemble", "cancelled", or the message of an error.
    outcome: str
    status: int


class Wait(NamedTuple):
    """A period in which requests waited for a load, or waited although an instance was idle."""

    model: str
    # Empty means any version.
    version: str
    reason: str
    from_ns: int
    to_ns: int
    # Number of requests that waited at the end of the period.
    requests: int


class ExecutionRecord(NamedTuple):
    """A batch at an executor. Each time ends a phase, which begins where the previous one ends."""

    model: str
    version: str
    instance: str
    number: int
    size: int
    # Time at which the whole frame had been read.
    received_ns: int
    # At these times the inputs are ready, the model has run, the outputs are split and copied, and
    # the reply is written.
    input_ns: int
    infer_ns: int
    output_ns: int
    written_ns: int
    # Frame sizes, without tensors passed by reference; 0 if unknown.
    bytes_in: int = 0
    bytes_out: int = 0


class Event(NamedTuple):
    """An event apart from requests, such as a load; to_ns is 0 if it has no duration."""

    # "load", "unload", "load failed", "executor joined", "executor left", "executor lost",
    # "instance lost", "scheduler started", "scheduler takeover", "link lost".
    what: str
    subject: str
    from_ns: int
    to_ns: int
    detail: str


# Values of Event.what for a failure, or a loss that nobody has asked for.
PROBLEMS: Final = frozenset({"load failed", "executor lost", "instance lost", "scheduler takeover"})

Record = GatewayRequest | BatchRecord | EndedRequest | Wait | ExecutionRecord | Event


@dataclass(slots=True)
class ServiceTimeline:
    """The records of one service, and details of the service."""

    # kind: "gateway", "scheduler" or "executor". name: in the mesh.
    kind: str
    name: str
    # Converts this service's times to the asked service's clock; 0 on the same host.
    offset_ns: int = 0
    # Maximum error of the offset.
    error_ns: int = 0
    # The records are complete between these two times.
    from_ns: int = 0
    to_ns: int = 0
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Timeline:
    """Records of all services. missing: services that did not respond, with the reason.

    epoch_ns: number to add to the asked service's times to get UNIX time.
    """

    epoch_ns: int = 0
    services: list[ServiceTimeline] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
