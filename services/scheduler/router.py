"""Which free instance of a model version runs the next batch: the one idle for longest.

Pure; an instance is any hashable object.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Router(Generic[T]):
    """The instances of one model version, each free or busy."""

    def add(self, instance: T) -> None:
        """It is ready and free."""
        raise NotImplementedError

    def remove(self, instance: T) -> bool:
        """It is gone; False if it was not here."""
        raise NotImplementedError

    def take(self) -> T | None:
        """The instance that has been free for longest, now busy; None: all are busy."""
        raise NotImplementedError

    def release(self, instance: T) -> None:
        """It is free again; nothing happens if it is gone meanwhile."""
        raise NotImplementedError

    @property
    def free(self) -> int:
        raise NotImplementedError

    @property
    def count(self) -> int:
        raise NotImplementedError
