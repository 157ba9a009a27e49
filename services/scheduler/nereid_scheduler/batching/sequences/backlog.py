"""The sequences that wait for a slot: their owners take turns, so that a client that opens many
delays another one's by one turn. Pure; every operation takes constant time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_scheduler.core.requests.sequence import Sequence


class Backlog:
    """Without owners, or with one, sequences come in order of arrival. Some have had their END."""

    def __init__(self) -> None:
        # By owners that have any, the one whose turn is next at the front.
        self._queues: OrderedDict[str, OrderedDict[Sequence, None]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: Sequence) -> bool:
        queue = self._queues.get(sequence.owner)
        return queue is not None and sequence in queue

    def append(self, sequence: Sequence) -> None:
        """Add it behind the others of its owner, or move it there."""
        self._queue_with(sequence).move_to_end(sequence)

    def prepend(self, sequence: Sequence) -> None:
        """Add it ahead of all others, or move it there: it had its turn, and lost the slot."""
        self._queue_with(sequence).move_to_end(sequence, last=False)
        self._queues.move_to_end(sequence.owner, last=False)

    def pop(self) -> Sequence:
        """Take out the next one, of which there must be one. Its owner's next turn is behind those
        of all others that wait.
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
        """Take it out, if it is there."""
        if sequence in self:
            queue = self._queues[sequence.owner]
            del queue[sequence]
            self._count -= 1
            if not queue:
                del self._queues[sequence.owner]

    def _queue_with(self, sequence: Sequence) -> OrderedDict[Sequence, None]:
        """Its owner's queue, which has it."""
        queue = self._queues.get(sequence.owner)
        if queue is None:
            queue = self._queues[sequence.owner] = OrderedDict()
        if sequence not in queue:
            queue[sequence] = None
            self._count += 1
        return queue
