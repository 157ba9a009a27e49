"""Which scheduler owns which model: by rendezvous hashing over the live members.

Models that an ensemble composes belong together with it, and so do models that clients know by one
name. Such a group moves as one; its key is the smallest of its names. Pure.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SCORE_BYTES = 8


def group_keys(compositions: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """The key of each name's group. compositions: names that belong together, as a name and others,
    which may be none.
    """
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
            # The smaller name is the root, and so the key.
            root, below = min(root, joined), max(root, joined)
            parents[below] = root
    return {name: root_of(name) for name in parents}


def owner_of(key: str, members: Iterable[str]) -> str | None:
    """The member that owns a group; None: there is no member."""
    return max(members, key=lambda member: (_score(member, key), member), default=None)


def _score(member: str, key: str) -> bytes:
    digest = hashlib.blake2b(member.encode(), digest_size=_SCORE_BYTES)
    digest.update(b"\0" + key.encode())
    return digest.digest()


class OwnedModels:
    """Which models one member owns, as it sees the members and the models. Empty members: none."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._members: frozenset[str] = frozenset()
        self._keys: Mapping[str, str] = {}
        # By key; cleared at every change.
        self._owners: dict[str, str | None] = {}

    @property
    def members(self) -> frozenset[str]:
        """Over which the models are shared out."""
        return self._members

    def set_members(self, members: frozenset[str]) -> None:
        """Share all models out over these."""
        self._members = members
        self._owners.clear()

    def set_groups(self, compositions: Iterable[tuple[str, Iterable[str]]]) -> bool:
        """Which models belong together; whether that is news. Others are on their own."""
        keys = group_keys(compositions)
        changed = keys != self._keys
        self._keys = keys
        self._owners.clear()
        return changed

    def owner(self, name: str) -> str | None:
        """The member that owns a model; None: there is no member."""
        key = self._keys.get(name, name)
        if key not in self._owners:
            self._owners[key] = owner_of(key, self._members)
        return self._owners[key]

    def owns(self, name: str) -> bool:
        """Whether this member does."""
        return self.owner(name) == self._name
