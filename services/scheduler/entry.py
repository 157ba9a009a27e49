"""A request inside the scheduler: what is queued, batched, executed and answered.

Knows no socket and no clock; an entry is built by validation.Validator.accept alone, so that only a
request that fits its model can be queued. Times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nereid.messages import Answer, InferRequest


class State(Enum):
    """Where an entry is. Only the owner of the model's queue moves it.

    QUEUED     built, or waiting in the queue    -> BATCHED, ANSWERED
    BATCHED    in a batch that waits for an instance, or was just taken by one
                                                 -> EXECUTING, QUEUED (put back), ANSWERED
    EXECUTING  an instance has it                -> ANSWERED, QUEUED (its instance died)
    ANSWERED   told its client, or given up by it; final
    """

    QUEUED = 1
    BATCHED = 2
    EXECUTING = 3
    ANSWERED = 4


@dataclass(frozen=True, slots=True)
class ValidHead:
    """What a model's configuration says of one head; shared by all requests with that head."""

    # 1 for models without a batch dimension; it is what counts toward max_batch_size.
    batch_size: int
    # Two entries may share a batch if and only if theirs are equal.
    shape_key: Hashable
    # The payload sizes that the shapes ask for, in head order; None where they vary (BYTES).
    sizes: tuple[int | None, ...]
    input_names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Entry:
    """One accepted request and what the scheduler remembers of it."""

    request: InferRequest
    valid: ValidHead
    # Whoever waits for the answer; opaque to the core.
    on_answer: Callable[[Answer], None]
    received_ns: int
    # 1 is the most urgent; models without priorities have only that one.
    level: int = 1
    # When the queue gives it up, by the model's queue policy.
    timeout_ns: int | None = None
    # When the client gives it up.
    deadline_ns: int | None = None
    enqueued_ns: int = 0
    # How often an instance died with it.
    retries: int = 0
    state: State = State.QUEUED
    # The batch that holds it, while it is BATCHED; the batcher's own note.
    holder: Any = None
