"""Which queued requests run together, and when: Triton's default and dynamic schedulers.

Pure: events and now in, batches out; no clock, socket or instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.errors import NereidError
    from nereid.model_config import ModelConfig
    from services.scheduler.entry import Entry


@dataclass(slots=True, eq=False)
class Batch:
    """Entries to be run together; size is the sum of their batch sizes.

    reason: why it closed: full, preferred, shape, delay, immediate or single.
    """

    entries: list[Entry]
    size: int
    reason: str


class Batcher(Protocol):
    """The queue of one model version. Only the owner of that version may call it."""

    # Entries that wait here, whether or not they are in a batch already.
    pending: int

    def add(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raises Unavailable when its queue is full."""

    def put_back(self, entries: Sequence[Entry]) -> None:
        """To the front, in this order: their instance died. Ignores queue bounds."""

    def remove(self, entry: Entry) -> bool:
        """Forget an entry that has not been taken; False if it is not here."""

    def take(self, now_ns: int, instances: int) -> Batch | None:
        """The batch that a free instance shall run now; None: wait."""

    def poll(self, now_ns: int, instances: int) -> None:
        """Form or grow the batches that wait for an instance. instances: how many are ready."""

    def expire(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """The entries whose queue timeout or deadline has passed; they are here no longer."""

    def wake_at_ns(self, now_ns: int) -> int | None:
        """When to call expire, and take or poll, again though nothing else happens."""


def make_batcher(config: ModelConfig, *, max_pending: int = 0) -> Batcher:
    """The scheduler that a configuration asks for; max_pending bounds it (0: no bound)."""
    raise NotImplementedError
