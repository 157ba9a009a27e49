"""Answers in the order of arrival, for models with preserve_ordering.

Pure; what an answer is does not matter here.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class _Slot(Generic[T]):
    __slots__ = ("held", "settled")

    def __init__(self) -> None:
        self.settled = False
        self.held: list[T] = []


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

    def add(self, entry: object, response: T) -> list[T]:
        """An answer that is not the entry's last: whether it may go out now."""
        slot = self._open[entry]
        if self._order[0] is slot:
            return [response]
        slot.held.append(response)
        return []

    def settle(self, entry: object, response: T | None) -> list[T]:
        """The answers that may go out now. None: this entry needs no other (cancelled)."""
        slot = self._open.pop(entry)
        slot.settled = True
        if response is not None:
            slot.held.append(response)
        order = self._order
        ready: list[T] = []
        while order and order[0].settled:
            ready += order.popleft().held
        if order and order[0].held:
            ready += order[0].held
            order[0].held.clear()
        return ready
