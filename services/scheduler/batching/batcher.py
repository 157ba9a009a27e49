"""Which queued requests run together, and when: what all batchers have in common.

Pure: events and now in, batches out; no clock, socket or instance. Once per turn of its loop the
owner adds what came, takes a batch for each free instance, polls, and asks when to be back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nereid.services.scheduler.batching.dynamic_batcher import DynamicBatcher
from nereid.services.scheduler.batching.queues import Expiries, Fifo, deadline_passed, queue_full
from nereid.services.scheduler.requests.entry import Batch, State, hand_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.errors import NereidError
    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.requests.entry import Entry

__all__ = ["Batch", "Batcher", "DynamicBatcher", "FifoBatcher", "make_batcher"]


class Batcher(Protocol):
    """The queue of one model version. Only the owner of that version may call it.

    An entry that was removed, has expired or was answered must not be given back.
    """

    # Entries that wait here, whether or not they are in a batch already.
    pending: int

    def add(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raises Unavailable when its queue is full."""

    def put_back(self, entries: Sequence[Entry]) -> None:
        """To the front, in this order: their instance died. Ignores bounds and queue timeouts."""

    def remove(self, entry: Entry) -> bool:
        """Forget an entry that has not been taken; False if it is not here."""

    def take(self, now_ns: int, instances: int) -> Batch | None:
        """The batch that a free instance shall run now, its entries EXECUTING; None: wait."""

    def poll(self, now_ns: int, instances: int) -> None:
        """Form or grow the batches that wait for an instance. instances: how many are ready."""

    def expire(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """The entries whose queue timeout or deadline has passed; they are here no longer."""

    def wake_at_ns(self, now_ns: int) -> int | None:
        """When to call expire, and take or poll, again though nothing else happens."""


def make_batcher(config: ModelConfig, *, max_pending: int = 0) -> Batcher:
    """The scheduler that a configuration asks for; max_pending bounds it (0: no bound)."""
    if config.batching is None:
        return FifoBatcher(config.name, max_pending)
    return DynamicBatcher(config.name, config.max_batch_size, config.batching, max_pending)


class FifoBatcher:
    """Triton's default scheduler: one request per execution, in order of arrival."""

    def __init__(self, model_name: str, max_pending: int = 0) -> None:
        self.pending = 0
        self._model_name = model_name
        self._max_pending = max_pending
        self._queue = Fifo()
        self._expiries = Expiries()

    def add(self, entry: Entry, now_ns: int) -> None:
        if self._max_pending and self.pending >= self._max_pending:
            raise queue_full(entry)
        entry.enqueued_ns = now_ns
        self._queue.append(entry)
        self.pending += 1
        self._expiries.push(entry, self.pending)

    def put_back(self, entries: Sequence[Entry]) -> None:
        self._queue.prepend(entries)
        self.pending += len(entries)
        for entry in entries:
            entry.state = State.QUEUED
            self._expiries.push(entry, self.pending)

    def remove(self, entry: Entry) -> bool:
        if entry.holder is not self._queue:
            return False
        self._queue.discard(entry)
        self.pending -= 1
        return True

    def take(self, now_ns: int, instances: int) -> Batch | None:  # noqa: ARG002 (no batch is formed)
        taken = self._queue.pop(1)
        if not taken:
            return None
        self.pending -= 1
        return hand_out(taken, taken[0].valid.batch_size, "single")

    def poll(self, now_ns: int, instances: int) -> None:
        """Do nothing: there is no batch to form."""

    def expire(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        ended: list[tuple[Entry, NereidError]] = []
        for entry in self._expiries.due(now_ns):
            self.remove(entry)
            ended.append((entry, deadline_passed(self._model_name)))
        return ended

    def wake_at_ns(self, now_ns: int) -> int | None:  # noqa: ARG002 (nothing is delayed)
        return self._expiries.next_ns()
