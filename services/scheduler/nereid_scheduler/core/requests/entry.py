"""Entry, which is a request inside the scheduler, and Batch, the entries of one execution.

Only Validator.make_entry creates entries, so that they fit their model. Times are monotonic.
"""

# layout: compiled

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
    from nereid_scheduler.core.requests.cache_lookup import CacheLookup
    from nereid_scheduler.core.requests.execution import Execution
    from nereid_scheduler.core.requests.request_trace import RequestTrace
    from nereid_scheduler.core.requests.sequence import SequenceMember

_log = logging.getLogger(__name__)


class RequestState(Enum):
    """State of an entry. The batcher sets states up to EXECUTING; the owner sets later states."""

    RECEIVED = 1  # valid, not yet queued
    CACHE_LOOKUP = 2  # waiting for the response cache, or for an identical request in flight
    QUEUED = 3  # waiting in the queue
    BATCHED = 4  # in a batch that waits for an instance
    EXECUTING = 5  # an instance has it
    RESPONDED = 6  # its last response was sent, or its client cancelled it


# Reading an attribute of an Enum class costs as much as a small call.
RECEIVED: Final = RequestState.RECEIVED
CACHE_LOOKUP: Final = RequestState.CACHE_LOOKUP
QUEUED: Final = RequestState.QUEUED
BATCHED: Final = RequestState.BATCHED
EXECUTING: Final = RequestState.EXECUTING
RESPONDED: Final = RequestState.RESPONDED

# Tests check every move against this table (tests/support/scheduler/samples.py).
TRANSITIONS: Final[Mapping[RequestState, frozenset[RequestState]]] = {
    # RECEIVED -> EXECUTING: the request came alone while an instance was free.
    RequestState.RECEIVED: frozenset(
        {RequestState.CACHE_LOOKUP, RequestState.QUEUED, RequestState.EXECUTING}
    ),
    RequestState.CACHE_LOOKUP: frozenset({RequestState.QUEUED, RequestState.RESPONDED}),
    RequestState.QUEUED: frozenset(
        {RequestState.BATCHED, RequestState.EXECUTING, RequestState.RESPONDED}
    ),
    # BATCHED -> QUEUED: the batch is undone.
    RequestState.BATCHED: frozenset(
        {RequestState.EXECUTING, RequestState.QUEUED, RequestState.RESPONDED}
    ),
    # EXECUTING -> QUEUED: the instance is lost.
    RequestState.EXECUTING: frozenset({RequestState.RESPONDED, RequestState.QUEUED}),
    RequestState.RESPONDED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ValidHead:
    """Result of checking one head; shared by all requests with that head."""

    # Rows that count toward max_batch_size; 1 without a batch dimension; 0 is refused later.
    batch_size: int
    # Two requests may share a batch if and only if their keys are equal.
    shape_key: Hashable
    # Bytes of each payload; `None` if the size varies (BYTES).
    sizes: tuple[int | None, ...]
    input_names: tuple[str, ...]
    # Size of the only payload; `None` if there are more, or if the size varies.
    lone_bytes: int | None = None
    # Their bytes must be equal for all requests of a batch.
    shape_tensors: tuple[int, ...] = ()
    # `None` if the payload sizes vary.
    layout: MemberLayout | None = None
    # Length of the rows before padding, of a model with max_batch_tokens; otherwise 0.
    length: int = 0
    # Elements of the inputs, before and after padding; 0 for a model without padding. They are
    # equal with max_batch_tokens, where the batch decides.
    elements: int = 0
    padded_elements: int = 0
    # If the request omits inputs that have a default: the head with these, and one row of each.
    completed_head: bytes = b""
    default_rows: tuple[bytes, ...] = ()


class PendingRequest(Protocol):
    """Accepted request that awaits its last response: an Entry, HeldRequest or ResentRequest."""

    def cancel(self) -> None:
        """Cancel the request: its client disconnected or cancelled it."""

    def set_flow(self, *, paused: bool) -> None:
        """Pause the responses of a client that cannot keep up with them, or resume them."""


class EntryOwner(Protocol):
    """The model version that accepted an entry."""

    @property
    def decoupled(self) -> bool:
        """True if a request may have any number of responses."""

    def cancel(self, entry: Entry) -> None:
        """Cancel an entry: its client disconnected or cancelled it."""

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause the responses of a client that cannot keep up with them, or resume them."""

    def is_blocked(self, entry: Entry) -> bool:
        """Return whether an entry waits for an event that may never happen; see ModelVersion."""

    def return_entry(self, entry: Entry, response: InferResponse) -> None:
        """End an entry with this response if it has not begun; otherwise do nothing."""


class Entry:
    """One accepted request, with all that the scheduler stores about it."""

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
        trace: RequestTrace | None = None,
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
        # 1 is the most urgent level.
        self.level = level
        # By the model's queue policy; `deadline_ns` comes from the client.
        self.timeout_ns = timeout_ns
        self.deadline_ns = deadline_ns
        self.enqueued_ns = enqueued_ns
        # Number of instances that were lost while they executed the entry.
        self.retries = retries
        self.state = state
        self.holder = holder
        self.cache_lookup = cache_lookup
        # Set only if the request is sampled.
        self.trace = trace
        self.execution = execution
        # Revision of the model that computed the response; set only after a cache lookup.
        self.revision = revision
        self.member = member

    def cancel(self) -> None:
        """Cancel the request at its model version."""
        self.owner.cancel(self)

    def set_flow(self, *, paused: bool) -> None:
        """Pause or resume the entry's responses at its model version."""
        self.owner.set_flow(self, paused=paused)

    @property
    def has_begun(self) -> bool:
        """True if an instance has the entry or had an iteration of it, so that it must stay."""
        return self.state is EXECUTING or (self.member is not None and self.member.iteration > 0)

    @property
    def is_running_once(self) -> bool:
        """True if an instance has the entry and will send a single response."""
        return self.state is EXECUTING and not self.owner.decoupled

    def respond(self, response: InferResponse) -> None:
        """Send a response. If the callback raises, log the exception, so no other entry fails."""
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
    """Entries that execute together. size: in rows. reason: why the batch was closed."""

    __slots__ = (
        "entries",
        "instance",
        "nulls",
        "reason",
        "size",
        "tokens",
        "traced",
    )

    def __init__(self, entries: list[Entry], size: int, reason: str) -> None:
        self.entries = entries
        self.size = size
        self.reason = reason
        # True if any entry is sampled; set when the batch is sent.
        self.traced = False
        # `None` means any free instance.
        self.instance: Any = None
        # Number of entries for slots without a request; their batch size is 0.
        self.nulls = 0
        # Padded tokens of a model with max_batch_tokens; otherwise 0.
        self.tokens = 0


def executing_batch(entries: list[Entry], size: int, reason: str) -> Batch:
    """Mark entries that leave the batcher as EXECUTING; return a batch of them."""
    for entry in entries:
        entry.state = EXECUTING
        entry.holder = None
    return Batch(entries, size, reason)


def identify_response(request: InferRequest, response: InferResponse) -> None:
    """Set a response's id to the request's id. If it is an error, also set the model's name."""
    response.id = request.id
    if response.error is not None:
        name = kserve_pb2.ModelInferRequest.FromString(request.head).model_name
        response.head = kserve_pb2.ModelInferResponse(model_name=name).SerializeToString()


def about(entry: Entry) -> dict[str, str]:
    """Return a value for the argument `extra` of a log call about this entry."""
    return request_log_extra(entry.request.request_id, entry.request.trace_context)
