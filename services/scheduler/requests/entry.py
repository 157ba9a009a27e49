"""A request inside the scheduler, and the batch that it runs in.

Knows no socket and no clock; an entry is built by validation.Validator.accept alone, so that only a
request that fits its model can be queued. Times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nereid.observability.logging import about as about_request
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nereid.core.messages import InferRequest, InferResponse
    from nereid.services.scheduler.caching.response_cache import Passage
    from nereid.services.scheduler.observability.entry_trace import EntryTrace
    from nereid.services.scheduler.observability.execution import Execution

_log = logging.getLogger(__name__)


class State(Enum):
    """Where an entry is. The batcher moves it up to EXECUTING, the owner of the model from there.

    WAITING    for the response cache                   -> QUEUED, ANSWERED
    QUEUED     new, or waiting in the queue             -> BATCHED, EXECUTING, ANSWERED
    BATCHED    in a batch that waits for an instance    -> EXECUTING, QUEUED (undone), ANSWERED
    EXECUTING  an instance has it                       -> ANSWERED, QUEUED (its instance died)
    ANSWERED   its client was told, or gave it up       final
    """

    QUEUED = 1
    BATCHED = 2
    EXECUTING = 3
    RESPONDED = 4
    WAITING = 5


@dataclass(frozen=True, slots=True)
class ValidHead:
    """What a model's configuration says of one head; shared by all requests with that head."""

    # What counts toward max_batch_size: 1 for a model without a batch dimension. 0 means that the
    # shapes say so, which no request survives (see Validator.check_sizes).
    batch_size: int
    # Equal if and only if the shapes and the set of inputs allow two requests to share a batch.
    shape_key: Hashable
    # The payload sizes that the shapes ask for, in head order; None where they vary (BYTES).
    sizes: tuple[int | None, ...]
    input_names: tuple[str, ...]
    # Positions of the shape tensors, whose very bytes must be equal within a batch.
    shape_tensors: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Entry:
    """One accepted request and what the scheduler remembers of it."""

    request: InferRequest
    valid: ValidHead
    # Whoever waits for the answer; opaque to the core.
    on_response: Callable[[InferResponse], None]
    received_ns: int
    # Two entries may share a batch if and only if theirs are equal.
    key: Hashable = None
    # 1 is the most urgent; models without priorities have only that one.
    level: int = 1
    # When the model's queue policy gives it up, and when its client does.
    timeout_ns: int | None = None
    deadline_ns: int | None = None
    enqueued_ns: int = 0
    # How often an instance died with it.
    retries: int = 0
    state: State = State.QUEUED
    # The batcher's own note of where it keeps the entry; None: not in its hands.
    holder: object = None
    # Its way through the response cache; None: it is not on one.
    passage: Passage | None = None
    # Only where the request is sampled.
    trace: EntryTrace | None = None
    # How the batch went that it was answered from.
    execution: Execution | None = None
    # Of the model, as the one that its answer is of had it; only of one that went by the cache.
    revision: bytes = b""


@dataclass(slots=True, eq=False)
class Batch:
    """Entries to be run together; size is the sum of their batch sizes.

    reason: why it closed: full, preferred, shape, delay, immediate or single.
    """

    entries: list[Entry]
    size: int
    reason: str
    # Whether any of them is sampled; noted when it is sent.
    traced: bool = False


def hand_out(entries: list[Entry], size: int, reason: str) -> Batch:
    """The batch of these entries, for the instance that takes them off the batcher's hands."""
    for entry in entries:
        entry.state = State.EXECUTING
        entry.holder = None
    return Batch(entries, size, reason)


def tell(entry: Entry, response: InferResponse) -> None:
    """Hand over the answer; that this fails is nobody else's trouble."""
    response.id = entry.request.id
    if response.error is not None:
        name = kserve_pb2.ModelInferRequest.FromString(entry.request.head).model_name
        response.head = kserve_pb2.ModelInferResponse(model_name=name).SerializeToString()
    try:
        entry.on_response(response)
    except Exception:
        _log.exception("an answer could not be handed over", extra=about(entry))


def about(entry: Entry) -> dict[str, str]:
    """`extra` for a log call about this entry."""
    return about_request(entry.request.request_id, entry.request.trace_context)
