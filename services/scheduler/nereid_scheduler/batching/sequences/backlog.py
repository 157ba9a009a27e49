"""Backlog of the sequences that wait for a slot.

Owners take turns, so that a client that opens many sequences delays another client's sequence by
one turn. Pure; every operation takes constant time. Knows no slots and no time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_scheduler.core.requests.sequence import Sequence


class Backlog:
    """Waiting sequences by owner; with one owner, or none, they leave in order of arrival.

    A sequence may already have had its END.
    """

    def __init__(self) -> None:
        # Queues of the owners that have any; the owner whose turn is next is at the front.
        self._queues: OrderedDict[str, OrderedDict[Sequence, None]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: Sequence) -> bool:
        queue = self._queues.get(sequence.owner)
        return queue is not None and sequence in queue

    def append(self, sequence: Sequence) -> None:
        """Add a sequence behind the others of its owner, or move it there."""
        self._queue_with(sequence).move_to_end(sequence)

    def prepend(self, sequence: Sequence) -> None:
        """Add a sequence ahead of all others, or move it there: it had a slot and lost it."""
        self._queue_with(sequence).move_to_end(sequence, last=False)
        self._queues.move_to_end(sequence.owner, last=False)

    def pop(self) -> Sequence:
        """Remove and return the next sequence; there must be one.

        The owner's next turn comes after those of all other owners that wait.
        """
        owner, queue = next(iter(self._queues.items()))
        sequence, _ = queue.popitem(last=False)
        self._count -= 1
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        return sequence

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence, if it is here."""
        if sequence in self:
            queue = self._queues[sequence.owner]
            del queue[sequence]
            self._count -= 1
            if not queue:
                del self._queues[sequence.owner]

    def _queue_with(self, sequence: Sequence) -> OrderedDict[Sequence, None]:
        """Return the queue of the sequence's owner, with the sequence in it."""
        queue = self._queues.get(sequence.owner)
        if queue is None:
            queue = self._queues[sequence.owner] = OrderedDict()
        if sequence not in queue:
            queue[sequence] = None
            self._count += 1
        return queue
