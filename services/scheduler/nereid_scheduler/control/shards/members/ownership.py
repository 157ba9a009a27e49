"""Decides which scheduler owns which model, by rendezvous hashing over the live members.

An ensemble and its models form a group with one owner. So do models with one plain name.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SCORE_BYTES = 8


def group_keys(compositions: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """Return the key of each name's group: the smallest name in the group."""
    parents: dict[str, str] = {}

    def root_of(name: str) -> str:
        root = name
        while (above := parents.setdefault(root, root)) != root:
            root = above
        while (above := parents[name]) != root:
            parents[name], name = root, above
        return root

    for name, others in compositions:
        root = root_of(name)
        for other in others:
            joined = root_of(other)
            root, below = min(root, joined), max(root, joined)
            parents[below] = root
    return {name: root_of(name) for name in parents}


def owner_of(key: str, members: Iterable[str]) -> str | None:
    """Return the member that owns a group, or `None` if there is no member."""
    return max(members, key=lambda member: (_score(member, key), member), default=None)


def _score(member: str, key: str) -> bytes:
    digest = hashlib.blake2b(member.encode(), digest_size=_SCORE_BYTES)
    digest.update(b"\0" + key.encode())
    return digest.digest()


class OwnedModels:
    """The models that one member owns, according to the members and groups that it sees."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._members: frozenset[str] = frozenset()
        self._keys: Mapping[str, str] = {}
        self._owners: dict[str, str | None] = {}

    @property
    def members(self) -> frozenset[str]:
        """Members among which the models are divided."""
        return self._members

    def set_members(self, members: frozenset[str]) -> None:
        """Divide all models among these members."""
        self._members = members
        self._owners.clear()

    def set_groups(self, compositions: Iterable[tuple[str, Iterable[str]]]) -> bool:
        """Set which models belong together; return whether that has changed."""
        keys = group_keys(compositions)
        changed = keys != self._keys
        self._keys = keys
        self._owners.clear()
        return changed

    def owner(self, name: str) -> str | None:
        """Return the member that owns a model, or `None` if there is no member."""
        key = self._keys.get(name, name)
        if key not in self._owners:
            self._owners[key] = owner_of(key, self._members)
        return self._owners[key]

    def owns(self, name: str) -> bool:
        """Return whether this member owns a model."""
        return self.owner(name) == self._name
