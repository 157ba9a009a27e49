"""Answers in the order of arrival, for models with preserve_ordering.

Pure; what an answer is does not matter here.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ReplyOrder(Generic[T]):
    """Holds answers back until all that arrived earlier are answered."""

    def admit(self, entry: object) -> None:
        """An entry arrived; its answer comes after those of all admitted before."""
        raise NotImplementedError

    def settle(self, entry: object, answer: T | None) -> list[T]:
        """The answers that may go out now. None: this entry needs none (cancelled)."""
        raise NotImplementedError
