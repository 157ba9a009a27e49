"""Chooses an instance of a model version for the next batch: the one that became free first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Router(Generic[T]):
    """Instances of one model version. `free_instances`: in order of becoming free."""

    def __init__(self) -> None:
        self._all: set[T] = set()
        self.free_instances: dict[T, None] = {}

    def __contains__(self, instance: object) -> bool:
        return instance in self._all

    def __iter__(self) -> Iterator[T]:
        return iter(self._all)

    def add_instance(self, instance: T) -> None:
        """Add a ready instance, which is free."""
        self._all.add(instance)
        self.free_instances[instance] = None

    def remove_instance(self, instance: T) -> bool:
        """Give an instance no more batches; return False if it is unknown."""
        if instance not in self._all:
            return False
        self._all.remove(instance)
        self.free_instances.pop(instance, None)
        return True

    def acquire_instance(self) -> T | None:
        """Return the instance that became free first, and make it busy; `None` if all are busy."""
        for instance in self.free_instances:
            del self.free_instances[instance]
            return instance
        return None

    def acquire_for(self, named: T | None) -> T:
        """Make the instance that a batch names busy, or else the first free one; return it."""
        if named is None:
            instance = self.acquire_instance()
            assert instance is not None, "a batch without a free instance"
            return instance
        self.acquire(named)
        return named

    def acquire(self, instance: T) -> None:
        """Make a free instance busy."""
        del self.free_instances[instance]

    def is_free(self, instance: T) -> bool:
        """Return whether an instance may have a batch now."""
        return instance in self.free_instances

    def release_instance(self, instance: T) -> None:
        """Make an instance free again, unless it was removed while it executed its batch."""
        if instance in self._all:
            self.free_instances[instance] = None

    @property
    def free(self) -> int:
        """Number of free instances."""
        return len(self.free_instances)

    @property
    def count(self) -> int:
        """Number of instances, free or busy."""
        return len(self._all)
