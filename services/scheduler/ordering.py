"""Answers in the order of arrival, for models with preserve_ordering.

Pure; what an answer is does not matter here.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class _Slot(Generic[T]):
    __slots__ = ("answer", "settled")

    def __init__(self) -> None:
        self.settled = False
        self.answer: T | None = None


class ReplyOrder(Generic[T]):
    """Holds answers back until all that arrived earlier are answered."""

    def __init__(self) -> None:
        self._order: deque[_Slot[T]] = deque()
        self._open: dict[object, _Slot[T]] = {}

    def __len__(self) -> int:
        """How many entries have not been let go."""
        return len(self._order)

    def admit(self, entry: object) -> None:
        """An entry arrived; its answer comes after those of all admitted before."""
        slot = self._open[entry] = _Slot[T]()
        self._order.append(slot)

    def settle(self, entry: object, answer: T | None) -> list[T]:
        """The answers that may go out now. None: this entry needs none (cancelled)."""
        slot = self._open.pop(entry)
        slot.settled = True
        slot.answer = answer
        ready: list[T] = []
        while self._order and self._order[0].settled:
            first = self._order.popleft().answer
            if first is not None:
                ready.append(first)
        return ready
