"""Backlog of the sequences that wait for a slot. Their owners (clients) take turns."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_scheduler.core.requests.sequence import Sequence


class Backlog:
    """Waiting sequences by owner; their END may have come already."""

    def __init__(self) -> None:
        # Key: an owner; the first one is next. Value: the owner's waiting sequences.
        self._queues: OrderedDict[str, OrderedDict[Sequence, None]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: Sequence) -> bool:
        queue = self._queues.get(sequence.owner)
        return queue is not None and sequence in queue

    def append(self, sequence: Sequence) -> None:
        """Add a sequence behind all others of its owner; move it if it waits already."""
        self._queue_with(sequence).move_to_end(sequence)

    def prepend(self, sequence: Sequence) -> None:
        """Add a sequence that has lost its slot ahead of all others; move it if it is waiting."""
        self._queue_with(sequence).move_to_end(sequence, last=False)
        self._queues.move_to_end(sequence.owner, last=False)

    def pop(self) -> Sequence:
        """Remove and return the next sequence; the backlog must not be empty."""
        owner, queue = next(iter(self._queues.items()))
        sequence, _ = queue.popitem(last=False)
        self._count -= 1
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        return sequence

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence if it is in the backlog."""
        if sequence in self:
            queue = self._queues[sequence.owner]
            del queue[sequence]
            self._count -= 1
            if not queue:
                del self._queues[sequence.owner]

    def _queue_with(self, sequence: Sequence) -> OrderedDict[Sequence, None]:
        queue = self._queues.get(sequence.owner)
        if queue is None:
            queue = self._queues[sequence.owner] = OrderedDict()
        if sequence not in queue:
            queue[sequence] = None
            self._count += 1
        return queue
