"""Sequences that a worker keeps open at a server: whose request is next, and what it is. Pure.

A sequence has at most one request in flight: the next one waits for its end.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from nereid_perf.inputs.errors import InputError


class RandomNumbers(Protocol):
    """Source of random numbers, such as random.Random."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a random number between a and b."""


class SequenceIds:
    """Worker's share of a range of ids, used in turn; no two workers' ids are ever equal.

    All models of a worker share one, as models of an ensemble see each other's ids.
    """

    def __init__(self, bounds: tuple[int, int], worker: int, workers: int) -> None:
        """Take a share of the numbers from the first to the last bound.

        Raises:
            InputError: a worker would have none.
        """
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
        """Return a free number, or `None` while open sequences have all of them."""
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
    """Request of a sequence; `sequence` is the index among its model's sequences."""

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
        # Requests until the sequence ends; 0 means that none is open.
        self.left = 0


class StreamChoice:
    """Choice of the stream for each new sequence, and of the sequence's length.

    first, step: start and step in the streams' turn, so that workers begin at different ones.
    length: `None` means the stream's own.
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
        """Return the stream, and the number of requests of the sequence."""
        stream = self._next % len(self._lengths)
        self._next += self._turn
        if self._length is None:
            return stream, self._lengths[stream]
        share = self._random.uniform(-self._variation, self._variation)
        return stream, max(1, round(self._length * (1 + share)))

    def step(self, stream: int, number: int) -> int:
        """Return the step of a stream for a sequence's request."""
        return number % self._lengths[stream]


class Sequences:
    """Sequences of one model in one worker."""

    def __init__(self, ids: SequenceIds, limit: int | None, choice: StreamChoice) -> None:
        """Prepare sequences, at most `limit` of them open at a time.

        With `None` as many are open as there are requests in flight.
        """
        self._ids = ids
        self._limit = limit
        self._choice = choice
        self._slots: list[_Slot] = []
        # Indexes of slots without a request in flight; the open ones that have waited longest come
        # first.
        self._open: deque[int] = deque()
        self._free: list[int] = []

    def next_step(self, *, may_begin: bool = True) -> SequenceStep | None:
        """Return the next step, or `None` if all sequences wait for a request in flight.

        may_begin: if false, each open sequence gets its last request, and no other one begins.
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
