"""The backlog against a naive one: a list in order of arrival, and the owners in order of turns."""

from hypothesis import given
from hypothesis import strategies as st

from nereid_scheduler.batching.sequences.backlog import Backlog
from nereid_scheduler.core.requests.sequence import Sequence

OWNERS = ("", "a", "b", "c")


class NaiveBacklog:
    """The same rules, with everything looked for."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.turns: list[str] = []

    def append(self, sequence: Sequence) -> None:
        self.discard(sequence, keeps_turn=True)
        self.waiting.append(sequence)
        if sequence.owner not in self.turns:
            self.turns.append(sequence.owner)

    def prepend(self, sequence: Sequence) -> None:
        self.discard(sequence)
        self.waiting.insert(0, sequence)
        self.turns = [sequence.owner, *(each for each in self.turns if each != sequence.owner)]

    def pop(self) -> Sequence:
        owner = self.turns.pop(0)
        sequence = next(each for each in self.waiting if each.owner == owner)
        self.waiting.remove(sequence)
        if any(each.owner == owner for each in self.waiting):
            self.turns.append(owner)
        return sequence

    def discard(self, sequence: Sequence, *, keeps_turn: bool = False) -> None:
        self.waiting = [each for each in self.waiting if each is not sequence]
        if not keeps_turn and all(each.owner != sequence.owner for each in self.waiting):
            self.turns = [each for each in self.turns if each != sequence.owner]


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "prepend", "discard", "pop"]), st.integers(0, 11)),
        max_size=60,
    )
)
def test_it_is_as_a_naive_one(steps: list[tuple[str, int]]) -> None:
    sequences = [Sequence(which, OWNERS[which % len(OWNERS)]) for which in range(12)]
    backlog, naive = Backlog(), NaiveBacklog()
    for step, which in steps:
        if step != "pop":
            getattr(backlog, step)(sequences[which])
            getattr(naive, step)(sequences[which])
        elif backlog:
            assert backlog.pop() is naive.pop()
        assert len(backlog) == len(naive.waiting)
        assert [each for each in sequences if each in backlog] == [
            each for each in sequences if each in naive.waiting
        ]
    while backlog:
        assert backlog.pop() is naive.pop()
    assert not naive.waiting


@given(st.lists(st.sampled_from(OWNERS), max_size=40), st.sampled_from(OWNERS[1:]))
def test_one_waits_for_a_turn_of_each_other_owner(before: list[str], owner: str) -> None:
    """However many the others have, and whatever comes behind it."""
    backlog = Backlog()
    others = [Sequence(which, each) for which, each in enumerate(before, 1) if each != owner]
    for other in others:
        backlog.append(other)
    mine = Sequence(99, owner)
    backlog.append(mine)
    ahead = []
    while (sequence := backlog.pop()) is not mine:
        ahead.append(sequence.owner)
        backlog.append(Sequence(100 + len(ahead), sequence.owner))
    assert len(ahead) == len({each.owner for each in others})
