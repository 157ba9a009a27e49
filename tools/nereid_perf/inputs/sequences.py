"""The sequences that a worker keeps open, each with at most one request in flight."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from nereid_perf.inputs.errors import InputError


class RandomNumbers(Protocol):
    """A source of random numbers, such as random.Random."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a random number between a and b."""


class SequenceIds:
    """A worker's own share of a range of sequence ids, used in turn.

    All models of a worker share it, because models of an ensemble see each other's ids.
    """

    def __init__(self, bounds: tuple[int, int], worker: int, workers: int) -> None:
        """Take a worker's share between the inclusive bounds; raise InputError if it is empty."""
        first, last = bounds
        self._first = first + worker
        self._step = workers
        self._count = len(range(self._first, last + 1, workers))
        if not self._count:
            raise InputError(
                f"--sequence-id-range: expected an id for each of {workers} workers, found "
                f"{last - first + 1}"
            )
        self._next = 0
        self._used: set[int] = set()

    def acquire(self) -> int | None:
        """Return a free number, or `None` while open sequences use all numbers."""
        if len(self._used) >= self._count:
            return None
        while True:
            number = self._first + self._next % self._count * self._step
            self._next += 1
            if number not in self._used:
                self._used.add(number)
                return number

    def release(self, number: int) -> None:
        """Make a number free again."""
        self._used.discard(number)


class SequenceStep(NamedTuple):
    """A request of a sequence; `sequence` is its index among the model's sequences."""

    sequence: int
    id: int
    stream: int
    step: int
    is_start: bool
    is_end: bool


class _Slot:
    __slots__ = ("id", "left", "step", "stream")

    def __init__(self) -> None:
        self.id = 0
        self.stream = 0
        self.step = 0
        # Requests until the sequence ends; 0 means that no sequence is open.
        self.left = 0


class StreamChoice:
    """Chooses the data stream and the length of each new sequence; `None` is the stream's length.

    turn: first stream and distance to the next; workers begin with different streams.
    """

    def __init__(
        self,
        lengths: list[int],
        turn: tuple[int, int],
        length: int | None,
        variation: float,
        random: RandomNumbers,
    ) -> None:
        self._lengths = lengths
        self._next, self._turn = turn
        self._length = length
        self._variation = variation
        self._random = random

    def choose(self) -> tuple[int, int]:
        """Return the stream of a new sequence, and the sequence's number of requests."""
        stream = self._next % len(self._lengths)
        self._next += self._turn
        if self._length is None:
            return stream, self._lengths[stream]
        share = self._random.uniform(-self._variation, self._variation)
        return stream, max(1, round(self._length * (1 + share)))

    def step(self, stream: int, number: int) -> int:
        """Return the index of the stream's step for a request of the sequence."""
        return number % self._lengths[stream]


class Sequences:
    """The sequences of one model in one worker."""

    def __init__(self, ids: SequenceIds, limit: int | None, choice: StreamChoice) -> None:
        """Keep at most `limit` sequences open; `None` means as many as requests in flight."""
        self._ids = ids
        self._limit = limit
        self._choice = choice
        self._slots: list[_Slot] = []
        # Slots without a request in flight: `_open` has sequences, the longest waiting first.
        self._open: deque[int] = deque()
        self._free: list[int] = []

    def next_step(self, *, may_begin: bool = True) -> SequenceStep | None:
        """Return the next step; `None` if open sequences are all busy and no sequence can begin.

        may_begin: if false, no sequence begins, and the step ends its sequence.
        """
        if self._open:
            index = self._open.popleft()
            slot = self._slots[index]
            if not may_begin:
                slot.left = 1
        elif may_begin:
            begun = self._begin()
            if begun is None:
                return None
            index, slot = begun
        else:
            return None
        number = slot.step
        slot.step += 1
        slot.left -= 1
        return SequenceStep(
            index,
            slot.id,
            slot.stream,
            self._choice.step(slot.stream, number),
            number == 0,
            slot.left == 0,
        )

    def on_end(self, sequence: int) -> None:
        """Note the end of a sequence's request in flight."""
        slot = self._slots[sequence]
        if slot.left:
            self._open.append(sequence)
        else:
            self._ids.release(slot.id)
            self._free.append(sequence)

    def _begin(self) -> tuple[int, _Slot] | None:
        if not self._free and self._limit is not None and len(self._slots) >= self._limit:
            return None
        number = self._ids.acquire()
        if number is None:
            return None
        if self._free:
            index = self._free.pop()
            slot = self._slots[index]
        else:
            index, slot = len(self._slots), _Slot()
            self._slots.append(slot)
        slot.id, slot.step = number, 0
        slot.stream, slot.left = self._choice.choose()
        return index, slot
