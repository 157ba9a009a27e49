"""A request inside the scheduler, and the batch that it runs in.

Knows no socket and no clock. Only validation.Validator.make_entry builds an entry, so that nothing
but a request that fits its model can be queued. Times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.core.wire.messages import InferRequest
from nereid.observability.logging import request_log_extra
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.core.requests.batch_frame import MemberLayout
    from nereid_scheduler.core.requests.entry_trace import EntryTrace
    from nereid_scheduler.core.requests.execution import Execution
    from nereid_scheduler.core.requests.sequence import SequenceMember
    from nereid_scheduler.versions.caching.response_cache import CacheLookup

_log = logging.getLogger(__name__)


class RequestState(Enum):
    """How far an entry has come. The batcher moves it up to EXECUTING, its owner from there."""

    RECEIVED = 1  # valid, not yet queued
    CACHE_LOOKUP = 2  # waiting for the response cache, or for a request like it
    QUEUED = 3  # waiting in the queue
    BATCHED = 4  # in a batch that waits for an instance
    EXECUTING = 5  # an instance has it
    RESPONDED = 6  # its last response was sent, or its client cancelled it


# An attribute of an Enum class costs as much as a small call; these are for each request's way.
RECEIVED: Final = RequestState.RECEIVED
QUEUED: Final = RequestState.QUEUED
BATCHED: Final = RequestState.BATCHED
EXECUTING: Final = RequestState.EXECUTING
RESPONDED: Final = RequestState.RESPONDED

# Tests check every move against this table (tests/support/scheduler/samples.py).
TRANSITIONS: Final[Mapping[RequestState, frozenset[RequestState]]] = {
    # To EXECUTING: it came alone, and an instance was free.
    RequestState.RECEIVED: frozenset(
        {RequestState.CACHE_LOOKUP, RequestState.QUEUED, RequestState.EXECUTING}
    ),
    RequestState.CACHE_LOOKUP: frozenset({RequestState.QUEUED, RequestState.RESPONDED}),
    RequestState.QUEUED: frozenset(
        {RequestState.BATCHED, RequestState.EXECUTING, RequestState.RESPONDED}
    ),
    # Back to the queue when the batch is undone.
    RequestState.BATCHED: frozenset(
        {RequestState.EXECUTING, RequestState.QUEUED, RequestState.RESPONDED}
    ),
    # Back to the queue when the instance is lost.
    RequestState.EXECUTING: frozenset({RequestState.RESPONDED, RequestState.QUEUED}),
    RequestState.RESPONDED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ValidHead:
    """What a model's configuration says of one head; shared by all requests with that head."""

    # Counts toward max_batch_size: 1 for a model without a batch dimension. 0 is what the shapes
    # say, and refused by Validator.check_sizes.
    batch_size: int
    # Equal if and only if the shapes and the set of inputs allow two requests to share a batch.
    shape_key: Hashable
    # The payload sizes that the shapes ask for, in head order; None where they vary (BYTES).
    sizes: tuple[int | None, ...]
    input_names: tuple[str, ...]
    # The size of the only payload; None: there are more, or it varies.
    lone_bytes: int | None = None
    # Indexes of the shape tensors, whose very bytes must be equal within a batch.
    shape_tensors: tuple[int, ...] = ()
    # Of a batch's member on the wire; None: its payloads' sizes vary.
    layout: MemberLayout | None = None


class PendingRequest(Protocol):
    """An accepted request without its last response: an Entry, a HeldRequest or a ResentRequest."""

    def cancel(self) -> None:
        """The client disconnected or cancelled."""

    def set_flow(self, *, paused: bool) -> None:
        """The client cannot keep up with the responses (paused), or can again."""


class EntryOwner(Protocol):
    """The model version that accepted an entry."""

    @property
    def decoupled(self) -> bool:
        """Whether its requests have any number of responses."""

    def cancel(self, entry: Entry) -> None:
        """The client disconnected or cancelled."""

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """The client cannot keep up with the responses (paused), or can again."""

    def is_blocked(self, entry: Entry) -> bool:
        """Whether it waits for what may never come: see QueuedRequests."""

    def return_entry(self, entry: Entry, response: InferResponse) -> None:
        """End an entry that has not begun by this response; others go on."""


class Entry:
    """One accepted request and what the scheduler remembers of it."""

    __slots__ = (
        "cache_lookup",
        "deadline_ns",
        "enqueued_ns",
        "execution",
        "holder",
        "key",
        "level",
        "member",
        "on_response",
        "owner",
        "received_ns",
        "request",
        "retries",
        "revision",
        "state",
        "timeout_ns",
        "trace",
        "valid",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record
        self,
        request: InferRequest,
        valid: ValidHead,
        on_response: Callable[[InferResponse], None],
        owner: EntryOwner,
        received_ns: int,
        key: Hashable = None,
        level: int = 1,
        timeout_ns: int | None = None,
        deadline_ns: int | None = None,
        enqueued_ns: int = 0,
        retries: int = 0,
        state: RequestState = RECEIVED,
        holder: Any = None,
        cache_lookup: CacheLookup | None = None,
        trace: EntryTrace | None = None,
        execution: Execution | None = None,
        revision: bytes = b"",
        member: SequenceMember | None = None,
    ) -> None:
        self.request = request
        self.valid = valid
        self.on_response = on_response
        self.owner = owner
        self.received_ns = received_ns
        # Two entries may share a batch if and only if their keys are equal.
        self.key = key
        # Priority level; 1 is the most urgent, and the only one of models without priorities.
        self.level = level
        # When the model's queue policy expires it, and its client's deadline.
        self.timeout_ns = timeout_ns
        self.deadline_ns = deadline_ns
        self.enqueued_ns = enqueued_ns
        # How many instances were lost while they executed it.
        self.retries = retries
        self.state = state
        # The batcher's: the queue or batch that holds the entry; None: it is not in the batcher.
        self.holder = holder
        # None: the response cache is not asked.
        self.cache_lookup = cache_lookup
        # Only where the request is sampled.
        self.trace = trace
        # Of the batch that its response came from.
        self.execution = execution
        # Of the model that computed the response; only where the response cache was asked.
        self.revision = revision
        # Its place in a sequence; only of models that have sequences.
        self.member = member

    def cancel(self) -> None:
        self.owner.cancel(self)

    def set_flow(self, *, paused: bool) -> None:
        self.owner.set_flow(self, paused=paused)

    @property
    def has_begun(self) -> bool:
        """Whether an instance has it, or has had it for an iteration; if not, it may run elsewhere
        as if it had never been here.
        """
        return self.state is EXECUTING or (self.member is not None and self.member.iteration > 0)

    @property
    def is_running_once(self) -> bool:
        """Whether an instance has it, and will send a single response."""
        return self.state is EXECUTING and not self.owner.decoupled

    def respond(self, response: InferResponse) -> None:
        """Send a response; a callback that raises is logged and affects no other entry."""
        request = self.request
        response.id = request.id
        if request.resent:
            response.inputs_in_use = True
        if response.error is not None:
            identify_response(request, response)
        try:
            self.on_response(response)
        except Exception:
            _log.exception("a response could not be sent", extra=about(self))


class Batch:
    """Entries that run together; size is the sum of their batch sizes.

    reason: why it closed: full, preferred, shape, delay, immediate or single.
    """

    __slots__ = (
        "entries",
        "instance",
        "nulls",
        "reason",
        "size",
        "traced",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record
        self,
        entries: list[Entry],
        size: int,
        reason: str,
        traced: bool = False,
        instance: Any = None,
        nulls: int = 0,
    ) -> None:
        self.entries = entries
        self.size = size
        self.reason = reason
        # Whether any of them is sampled; set when it is sent.
        self.traced = traced
        # The one that it is for; None: any that is free.
        self.instance = instance
        # How many of the entries stand for slots without a request; their batch size is 0.
        self.nulls = nulls


def executing_batch(entries: list[Entry], size: int, reason: str) -> Batch:
    """A batch of entries that leave the batcher for an instance."""
    for entry in entries:
        entry.state = EXECUTING
        entry.holder = None
    return Batch(entries, size, reason)


def identify_response(request: InferRequest, response: InferResponse) -> None:
    """Make it the response to this request; an error names the model."""
    response.id = request.id
    if response.error is not None:
        name = kserve_pb2.ModelInferRequest.FromString(request.head).model_name
        response.head = kserve_pb2.ModelInferResponse(model_name=name).SerializeToString()


def about(entry: Entry) -> dict[str, str]:
    """`extra` for a log call about this entry."""
    return request_log_extra(entry.request.request_id, entry.request.trace_context)
