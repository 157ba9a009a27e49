"""The explorer finds faults that take an unusual order, and tells each in as few steps as possible.

Kept as a test of an oracle: an explorer that prunes too much lets every protocol pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.protocols.explorer import Action, Channel, World, explore, explore_random

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


class _LostUpdate(World):
    """Two processes read a number, and then write one more than what they have read."""

    def __init__(self, *, atomic: bool = False) -> None:
        self.number = 0
        self.read: dict[str, int] = {}
        self.left = ["a", "b"]
        self.atomic = atomic

    def actions(self) -> Iterable[Action]:
        for name in self.left:
            if name in self.read:
                yield Action(name, f"{name} writes", lambda name=name: self._write(name))  # type: ignore[misc]
            else:
                yield Action(name, f"{name} reads", lambda name=name: self._read(name))  # type: ignore[misc]

    def _read(self, name: str) -> None:
        self.read[name] = self.number
        if self.atomic:
            self._write(name)

    def _write(self, name: str) -> None:
        self.number = self.read[name] + 1
        self.left.remove(name)

    def check_at_rest(self) -> None:
        assert self.number == 2, "an update was lost"


def test_explore_lost_update_has_the_shortest_story() -> None:
    found = explore(_LostUpdate, reorderings=2)
    assert found.failure is not None
    assert sorted(found.failure.story[:2]) == ["a reads", "b reads"]
    assert len(found.failure.story) == 4


def test_explore_without_reorderings_runs_once() -> None:
    found = explore(_LostUpdate, reorderings=0)
    assert found.failure is None
    assert found.complete
    assert found.runs == 1


def test_explore_atomic_update_is_complete() -> None:
    found = explore(lambda: _LostUpdate(atomic=True), reorderings=3)
    assert found.failure is None
    assert found.complete


def test_explore_stops_at_its_limit() -> None:
    found = explore(lambda: _LostUpdate(atomic=True), reorderings=3, limit=1)
    assert not found.complete
    assert found.runs == 1


def test_explore_random_finds_the_lost_update_and_replays_it() -> None:
    found = explore_random(_LostUpdate, seeds=range(200), length=4)
    assert found.failure is not None
    assert found.failure.seed is not None
    again = explore_random(_LostUpdate, seeds=[found.failure.seed], length=4)
    assert again.failure is not None
    assert again.failure.story == found.failure.story


class _Breakable(World):
    """A channel with three messages, which may break once."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self.channel = Channel("wire", self.got.append)
        for number in range(3):
            self.channel.send(number)

    def actions(self) -> Iterable[Action]:
        yield from self.channel.arrivals()
        if not self.channel.broken:
            yield Action("fault", "the wire breaks", self.channel.close, disruption=True)

    def check(self) -> None:
        assert self.got == list(range(len(self.got)))

    def check_at_rest(self) -> None:
        assert len(self.got) != 2, "two"

    def fingerprint(self) -> Hashable:
        return len(self.got), self.channel.broken


def test_explore_takes_disruptions_at_every_point() -> None:
    found = explore(_Breakable, reorderings=1)
    assert found.failure is not None
    assert list(found.failure.story) == ["wire: 0", "wire: 1", "the wire breaks"]
    assert "two" in str(found.failure)


def test_explore_does_not_go_twice_through_one_state() -> None:
    found = explore(_Merging, reorderings=6)
    assert found.complete
    assert found.steps < 60


class _Merging(World):
    """Independent steps whose order makes no difference."""

    def __init__(self) -> None:
        self.done: set[int] = set()

    def actions(self) -> Iterable[Action]:
        for number in range(4):
            if number not in self.done:
                yield Action(
                    str(number),
                    f"step {number}",
                    lambda number=number: self.done.add(number),  # type: ignore[misc]
                )

    def fingerprint(self) -> Hashable:
        return frozenset(self.done)
