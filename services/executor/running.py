"""What is known of a batch between a model's first request and its last answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.messages import SharedMemory
    from services.executor.assembly import Piece


@dataclass(slots=True, eq=False)
class Running:
    """A batch that is being executed, or, of a decoupled model, has requests without their end."""

    # The scheduler's number.
    id: int
    started_ns: int
    begun_ns: int
    # By member, in pieces; None: nothing yet. A decoupled model's are gone once they are sent.
    answers: list[Sequence[Piece] | None]
    # The model's members, which are those without a defect: their places in the batch.
    places: list[int]
    # Of the model's members.
    open: set[int]
    # Where some of them may put their outputs, until they have answered.
    rooms: dict[int, SharedMemory] = field(default_factory=dict)
    contexts: list[bytes] = field(default_factory=list)
    failed: str | None = None
    # Something was said of it.
    told: bool = False
    # By the model's member: which outputs it wants as classes.
    classes: dict[int, Mapping[str, int]] = field(default_factory=dict)
