"""Records of timelines: those of each service, and what is known of the service's clock.

All times are nanoseconds of the recording service's monotonic clock; 0 means that an event did not
happen, or that its time is not known. Records of different services belong together by ids: a
request's number is unique in the mesh, and a batch has its instance, executor and number. This
module knows no service and no format in which a timeline is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Values of Wait.reason: why requests waited while an instance was idle.
DELAY: Final = "delay"  # the batch waited for more requests
RATE_LIMITER: Final = "rate limiter"
MEMORY: Final = "memory"
LOADING: Final = "loading"  # no instance was loaded yet


class GatewayRequest(NamedTuple):
    """One request at a gateway."""

    # The same number as in the records of schedulers.
    number: int
    model: str
    version: str
    # Protocol: "http", "grpc" or "stream".
    protocol: str
    # The client's id.
    request_id: str
    # Trace id in hexadecimal; empty: the request was not sampled.
    trace_id: str
    received_ns: int
    # Time at which the gateway had written the response.
    ended_ns: int
    # A gRPC status code.
    status: int


class Member(NamedTuple):
    """A request of a batch."""

    # Number in the mesh; 0: the scheduler made the request, for a slot without one, or for a step
    # of a decoupled ensemble.
    number: int
    received_ns: int
    enqueued_ns: int
    # Number of earlier executions of the request.
    retries: int


class BatchRecord(NamedTuple):
    """A batch at the scheduler: an instance has executed it, executes it, or was lost with it."""

    model: str
    version: str
    # Names of the instance and of its executor.
    instance: str
    executor: str
    # Number of the batch on the instance's stream.
    number: int
    size: int
    members: tuple[Member, ...]
    # Time since which the instance had no batch; equal to sent_ns if it had one until then.
    idle_since_ns: int
    sent_ns: int
    # Start of the execution, later than sent_ns if the batch waited behind another one.
    started_ns: int
    # Arrival of the reply; 0: the batch is still executed.
    finished_ns: int
    # Durations that the instance reports.
    input_ns: int
    infer_ns: int
    output_ns: int
    # Reason for which the instance was lost, or the batch failed.
    error: str = ""


class EndedRequest(NamedTuple):
    """A request that ended at the scheduler without an execution of its own.

    Its response came from the cache, or it was refused in the queue, cancelled or timed out, or it
    is an ensemble's, whose steps have the executions.
    """

    number: int
    model: str
    version: str
    received_ns: int
    enqueued_ns: int
    ended_ns: int
    # "cache hit", "ensemble", "cancelled", or an error's message.
    outcome: str
    status: int


class Wait(NamedTuple):
    """A time in which requests of a model waited at the scheduler.

    They waited in the queue although an instance was idle, or, before it, for their model's load.
    """

    model: str
    # Version; empty: any version.
    version: str
    reason: str
    from_ns: int
    to_ns: int
    # Number of requests at the end of the wait.
    requests: int


class ExecutionRecord(NamedTuple):
    """A batch at an executor. Each time is the end of the phase before it."""

    model: str
    version: str
    instance: str
    number: int
    # Number of requests.
    size: int
    # Time at which the frame had been read whole.
    received_ns: int
    # Ends of the phases: inputs are views, joined, or copied to the device; the model has run;
    # outputs are split and copied; the reply is written.
    input_ns: int
    infer_ns: int
    output_ns: int
    written_ns: int
    # Sizes of the frames in and out, without tensors passed by reference. 0: not known.
    bytes_in: int = 0
    bytes_out: int = 0


class Event(NamedTuple):
    """An event that is not part of a request, such as a load or a member that came or was lost.

    to_ns is 0 for an event without a duration.
    """

    # Kind: "load", "unload", "load failed", "executor joined", "executor lost", "instance lost",
    # "scheduler takeover", "link lost".
    what: str
    subject: str
    from_ns: int
    to_ns: int
    detail: str


Record = GatewayRequest | BatchRecord | EndedRequest | Wait | ExecutionRecord | Event


@dataclass(slots=True)
class ServiceTimeline:
    """Records of one service."""

    # Kind ("gateway", "scheduler" or "executor") and name in the mesh.
    kind: str
    name: str
    # Offset to add to this service's times to get those of the service that was asked, and the
    # largest error of that offset. Both are 0 on one host.
    offset_ns: int = 0
    error_ns: int = 0
    # Times between which the records are complete.
    from_ns: int = 0
    to_ns: int = 0
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Timeline:
    """Records of all services of a mesh.

    epoch_ns: the number to add to the times of the service that was asked to get UNIX time.
    missing: services that did not respond, each with the reason.
    """

    epoch_ns: int = 0
    services: list[ServiceTimeline] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
