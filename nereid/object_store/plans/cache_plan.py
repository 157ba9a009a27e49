"""What to remove from a host's cache when something else needs the space. Pure.

A tree is the directory of a model version, whose files are links to objects: removing it frees
those that no other tree has.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class CachedObject(NamedTuple):
    """One file. last_used: a time of any clock."""

    size: int
    last_used: int


class CachedTree(NamedTuple):
    """One version's directory. objects: their names."""

    objects: frozenset[str]
    last_used: int
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class CacheContent:
    """All that a cache has."""

    objects: Mapping[str, CachedObject] = field(default_factory=dict)
    trees: Mapping[str, CachedTree] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(each.size for each in self.objects.values())


class Eviction(NamedTuple):
    """What to remove, and how many bytes that frees."""

    trees: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    freed: int = 0


def plan_eviction(
    content: CacheContent, bytes_to_free: int, keep: Collection[str] = ()
) -> Eviction | None:
    """The least recently used first. keep: objects that are about to be used. None: what is not in
    use has fewer bytes than that.
    """
    users = Counter(name for tree in content.trees.values() for name in tree.objects)
    candidates = [
        (tree.last_used, name, True) for name, tree in content.trees.items() if not tree.in_use
    ]
    candidates += [
        (each.last_used, name, False)
        for name, each in content.objects.items()
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
                each
                for each in members
                if not users[each] and each not in keep and each in content.objects
            ]
        objects += removable
        freed += sum(content.objects[each].size for each in removable)
    return Eviction(tuple(trees), tuple(objects), freed) if freed >= bytes_to_free else None
