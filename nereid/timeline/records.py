"""What a timeline is made of: what each service recorded, and what it says of its own clock.

All times are nanoseconds of the recording service's monotonic clock; 0: it did not happen, or is
not known. Records are found by ids: a request by its number, which is its own in the whole mesh, a
batch by its instance, executor and number. Knows no service, and no form that a timeline is written
in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Why requests waited while an instance was idle: Wait.reason.
DELAY: Final = "delay"  # the batch was to be filled
RATE_LIMITER: Final = "rate limiter"
MEMORY: Final = "memory"
LOADING: Final = "loading"  # no instance was loaded yet


class GatewayRequest(NamedTuple):
    """One request at a gateway."""

    # As in the records of schedulers.
    number: int
    model: str
    version: str
    # "http", "grpc" or "stream".
    protocol: str
    # The client's.
    request_id: str
    # In hexadecimal; empty: it was not sampled.
    trace_id: str
    received_ns: int
    # The gateway has written the response.
    ended_ns: int
    # A gRPC status code.
    status: int


class Member(NamedTuple):
    """A request of a batch."""

    # 0: the scheduler made it, for a slot without a request, or for a step of a decoupled ensemble.
    number: int
    received_ns: int
    enqueued_ns: int
    # How often it was executed before.
    retries: int


class BatchRecord(NamedTuple):
    """A batch that an instance has executed, executes, or was lost with, at the scheduler."""

    model: str
    version: str
    # Its name, and its executor's.
    instance: str
    executor: str
    # Of the batch on the instance's stream.
    number: int
    size: int
    members: tuple[Member, ...]
    # Since when the instance had had no batch; as sent_ns: it had one until then.
    idle_since_ns: int
    sent_ns: int
    # The instance began it: later than sent_ns if it waited behind another one.
    started_ns: int
    # Its reply arrived; 0: it executes.
    finished_ns: int
    # What the instance reports.
    input_ns: int
    infer_ns: int
    output_ns: int
    # The instance was lost, or the batch failed: why.
    error: str = ""


class EndedRequest(NamedTuple):
    """A request that ended at the scheduler without an execution of its own: from the cache,
    refused in the queue, cancelled, timed out; or an ensemble's, whose steps have executions.
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
    """Requests of a model waited at the scheduler: in the queue although an instance was idle, or
    before it, until their model was loaded.
    """

    model: str
    # Empty: any of them.
    version: str
    reason: str
    from_ns: int
    to_ns: int
    # How many there were at its end.
    requests: int


class ExecutionRecord(NamedTuple):
    """A batch at an executor. Each time is the end of the phase before it."""

    model: str
    version: str
    instance: str
    number: int
    # How many requests it has.
    size: int
    # The frame was read whole.
    received_ns: int
    # Inputs are views, joined, or copied to the device; the model has run; outputs are split and
    # copied; the reply is written.
    input_ns: int
    infer_ns: int
    output_ns: int
    written_ns: int
    # Of the frames in and out: without what is passed by reference. 0: not known.
    bytes_in: int = 0
    bytes_out: int = 0


class Event(NamedTuple):
    """Something that is not part of a request: a load, an unload, a member that came or was lost.

    to_ns 0: it has no duration.
    """

    # "load", "unload", "load failed", "executor joined", "executor lost", "instance lost",
    # "scheduler takeover", "link lost".
    what: str
    subject: str
    from_ns: int
    to_ns: int
    detail: str


Record = GatewayRequest | BatchRecord | EndedRequest | Wait | ExecutionRecord | Event


@dataclass(slots=True)
class ServiceTimeline:
    """What one service recorded."""

    # "gateway", "scheduler" or "executor"; its name in the mesh.
    kind: str
    name: str
    # To be added to its times, for those of the service that was asked; and how far that may be
    # off. Both 0 on one host.
    offset_ns: int = 0
    error_ns: int = 0
    # Records are complete from the first to the second.
    from_ns: int = 0
    to_ns: int = 0
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Timeline:
    """What all services of a mesh recorded.

    epoch_ns: what the clock of the service that was asked has to be added for UNIX time. missing:
    services that did not answer, and why.
    """

    epoch_ns: int = 0
    services: list[ServiceTimeline] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
