"""Which sequence's request is next."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.sequences import SequenceIds, Sequences, SequenceStep, StreamChoice


def sequences(
    limit: int | None = None,
    length: int | None = 3,
    *,
    lengths: tuple[int, ...] = (2,),
    variation: float = 0.0,
    ids: SequenceIds | None = None,
) -> Sequences:
    choice = StreamChoice([*lengths], (0, 1), length, variation, Random(1))
    return Sequences(ids or SequenceIds((1, 1000), 0, 1), limit, choice)


def taken(source: Sequences, *, may_begin: bool = True) -> SequenceStep:
    step = source.next_step(may_begin=may_begin)
    assert step is not None
    return step


def test_sequence_has_one_request_in_flight_and_goes_on_at_its_end() -> None:
    source = sequences(limit=1)
    steps = []
    for _ in range(4):
        steps.append(taken(source))
        assert source.next_step() is None
        source.on_end(0)
    assert [each[1:] for each in steps] == [
        (1, 0, 0, True, False),
        (1, 0, 1, False, False),
        (1, 0, 0, False, True),
        (2, 0, 0, True, False),
    ]


def test_open_sequences_go_on_before_others_begin() -> None:
    source = sequences()
    first, second = taken(source), taken(source)
    assert (first.id, second.id) == (1, 2)
    source.on_end(second.sequence)
    source.on_end(first.sequence)
    assert [taken(source).id, taken(source).id, taken(source).id] == [2, 1, 3]


def test_sequence_of_one_request_starts_and_ends() -> None:
    step = taken(sequences(length=1))
    assert step.is_start
    assert step.is_end


def test_streams_are_sent_in_turn_whole_where_no_length_is_given() -> None:
    source = sequences(limit=1, length=None, lengths=(2, 1))
    found = []
    for _ in range(5):
        step = taken(source)
        found.append((step.stream, step.step, step.is_end))
        source.on_end(0)
    assert found == [
        (0, 0, False),
        (0, 1, True),
        (1, 0, True),
        (0, 0, False),
        (0, 1, True),
    ]


def test_length_varies_by_its_share() -> None:
    choice = StreamChoice([1], (0, 1), 20, 0.2, Random(1))
    lengths = [choice.choose()[1] for _ in range(500)]
    assert (min(lengths), max(lengths)) == (16, 24)
    assert abs(sum(lengths) / 500 - 20) < 0.5


def test_draining_ends_what_is_open_and_begins_nothing() -> None:
    source = sequences()
    first, second = taken(source), taken(source)
    source.on_end(first.sequence)
    last = taken(source, may_begin=False)
    assert (last.id, last.is_end) == (first.id, True)
    assert source.next_step(may_begin=False) is None
    source.on_end(last.sequence)
    source.on_end(second.sequence)
    assert taken(source, may_begin=False).is_end
    source.on_end(second.sequence)
    assert source.next_step(may_begin=False) is None


def test_ids_are_used_again_only_when_their_sequence_has_ended() -> None:
    source = sequences(ids=SequenceIds((5, 6), 0, 1), length=2)
    one, two = taken(source), taken(source)
    assert source.next_step() is None
    for _ in range(2):
        source.on_end(two.sequence)
        if (step := source.next_step()) is not None:
            assert step.id == 6
    assert one.id == 5
    source.on_end(one.sequence)
    assert taken(source).id == 5


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 30))
def test_no_two_workers_have_equal_ids(workers: int, first: int, size: int) -> None:
    found: list[int] = []
    for worker in range(min(workers, size)):
        ids = SequenceIds((first, first + size - 1), worker, workers)
        while (number := ids.acquire()) is not None:
            found.append(number)
    assert sorted(found) == [*range(first, first + size)]


@given(st.lists(st.integers(0, 7), max_size=60), st.integers(1, 4))
def test_each_sequence_is_whole_whatever_ends_first(ends: list[int], limit: int) -> None:
    source = sequences(limit=limit, length=3)
    pending: list[SequenceStep] = []
    seen: dict[int, list[SequenceStep]] = {}
    for choice in ends:
        while (step := source.next_step()) is not None:
            assert step.sequence not in {each.sequence for each in pending}
            pending.append(step)
            seen.setdefault(step.id, []).append(step)
        assert len(pending) == limit
        source.on_end(pending.pop(choice % len(pending)).sequence)
    for steps in seen.values():
        assert [each.is_start for each in steps] == [True, False, False][: len(steps)]
        assert [each.is_end for each in steps] == [False, False, True][: len(steps)]


def test_range_without_an_id_for_each_worker() -> None:
    text = "--sequence-id-range: expected an id for each of 3 workers, found 2"
    with pytest.raises(InputError, match=text):
        SequenceIds((1, 2), 2, 3)
