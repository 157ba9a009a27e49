"""Sends responses in the order of their requests, for models with preserve_ordering."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class _Slot(Generic[T]):
    __slots__ = ("ended", "held")

    def __init__(self) -> None:
        self.ended = False
        self.held: list[T] = []


class ResponseOrder(Generic[T]):
    """Hold responses back until all requests that arrived earlier have ended."""

    def __init__(self) -> None:
        self._order: deque[_Slot[T]] = deque()
        self._open: dict[object, _Slot[T]] = {}

    def __len__(self) -> int:
        """Return the number of requests that have not ended or whose responses are held back."""
        return len(self._order)

    def append_request(self, entry: object) -> None:
        """Add a request that arrived; its responses follow those of all earlier requests."""
        slot = self._open[entry] = _Slot[T]()
        self._order.append(slot)

    def order_response(self, entry: object, response: T) -> list[T]:
        """Take a response that is not the last of its request; return the responses to send now."""
        slot = self._open[entry]
        if self._order[0] is slot:
            return [response]
        slot.held.append(response)
        return []

    def end_request(self, entry: object, response: T | None) -> list[T]:
        """End a request; return the responses to send now. response: `None` if it was cancelled."""
        slot = self._open.pop(entry)
        slot.ended = True
        if response is not None:
            slot.held.append(response)
        order = self._order
        ready: list[T] = []
        while order and order[0].ended:
            ready += order.popleft().held
        if order and order[0].held:
            ready += order[0].held
            order[0].held.clear()
        return ready
