"""Plan what to remove from a host's cache when space is needed.

A tree is a model version's directory. Removing it frees the objects that no other tree links to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class CachedObject(NamedTuple):
    """One file. last_used is a time by any clock that all files share."""

    size: int
    last_used: int


class CachedTree(NamedTuple):
    """The directory of one model version. Its files are links to the objects named in objects."""

    objects: frozenset[str]
    last_used: int
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class CacheContent:
    """All objects and trees of a cache, by their names."""

    objects: Mapping[str, CachedObject] = field(default_factory=dict)
    trees: Mapping[str, CachedTree] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Size of all objects, in bytes."""
        return sum(stored.size for stored in self.objects.values())


class Eviction(NamedTuple):
    """Trees and objects to remove, and the number of bytes that this frees."""

    trees: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    freed: int = 0


def plan_eviction(
    content: CacheContent, bytes_to_free: int, keep: Collection[str] = ()
) -> Eviction | None:
    """Return what to remove, least recently used first, but not `keep`.

    `None` means that removing everything unused would free too few bytes.
    """
    users = Counter(name for tree in content.trees.values() for name in tree.objects)
    candidates = [
        (tree.last_used, name, True) for name, tree in content.trees.items() if not tree.in_use
    ]
    candidates += [
        (stored.last_used, name, False)
        for name, stored in content.objects.items()
        if not users[name] and name not in keep
    ]
    trees: list[str] = []
    objects: list[str] = []
    freed = 0
    for _, name, is_tree in sorted(candidates):
        if freed >= bytes_to_free:
            break
        removable = [name]
        if is_tree:
            trees.append(name)
            users.subtract(content.trees[name].objects)
            members = sorted(content.trees[name].objects)
            removable = [
                member
                for member in members
                if not users[member] and member not in keep and member in content.objects
            ]
        objects += removable
        freed += sum(content.objects[removed].size for removed in removable)
    return Eviction(tuple(trees), tuple(objects), freed) if freed >= bytes_to_free else None
