from collections.abc import Callable, Iterable

import pytest

from nereid_adopt.calls import traffic as module
from nereid_adopt.calls.traffic import SequenceStep, Side, Traffic


def drawing(numbers: Iterable[float]) -> Callable[[], float]:
    return iter(numbers).__next__


def step(*, start: bool = False, end: bool = False, sequence_id: str = "1") -> SequenceStep:
    return SequenceStep("m", sequence_id, start, end)


def test_requests_are_divided_by_weight() -> None:
    traffic = Traffic(drawing([0.0, 0.24, 0.25, 0.99]))
    traffic.weight = 25
    sides = [traffic.side_of_request(None) for _ in range(4)]
    assert sides == [Side.NEW, Side.NEW, Side.OLD, Side.OLD]


@pytest.mark.parametrize(("weight", "side"), [(0, Side.OLD), (100, Side.NEW)])
def test_the_ends_of_the_scale_are_certain(weight: int, side: Side) -> None:
    traffic = Traffic()
    traffic.weight = weight
    assert {traffic.side_of_request(None) for _ in range(1000)} == {side}
    assert traffic.side_of_other_calls() is side


def test_calls_that_are_no_inference_turn_last() -> None:
    traffic = Traffic()
    traffic.weight = 99
    assert traffic.side_of_other_calls() is Side.OLD


def test_a_sequence_keeps_the_side_of_its_start() -> None:
    traffic = Traffic(drawing([0.5] * 9))
    assert traffic.side_of_request(step(start=True)) is Side.OLD
    traffic.weight = 100
    assert traffic.side_of_request(step()) is Side.OLD
    assert traffic.side_of_request(step(start=True, sequence_id="2")) is Side.NEW
    traffic.weight = 0
    assert traffic.side_of_request(step(sequence_id="2")) is Side.NEW
    assert traffic.side_of_request(step(end=True, sequence_id="2")) is Side.NEW
    assert len(traffic.open_sequences) == 1
    assert traffic.side_of_request(step(end=True)) is Side.OLD
    assert len(traffic.open_sequences) == 0


def test_a_sequence_that_began_before_the_proxy_is_the_old_server_s() -> None:
    traffic = Traffic(drawing([0.0]))
    traffic.weight = 100
    assert traffic.side_of_request(step()) is Side.OLD
    assert len(traffic.open_sequences) == 0


def test_a_stream_follows_its_connection_or_its_sequence() -> None:
    traffic = Traffic(drawing([0.3, 0.9]))
    traffic.weight = 50
    draws = traffic.draw_connection(), traffic.draw_connection()
    assert [traffic.side_of_stream(None, draw) for draw in draws] == [Side.NEW, Side.OLD]
    side = traffic.side_of_stream(step(start=True), draws[0])
    assert {traffic.side_of_stream(step(), draw) for draw in draws} == {side}


def test_sequences_are_divided_by_weight_and_kept_together_by_their_ids() -> None:
    sides: list[Side] = []
    for number in range(10_000):
        # Two proxies decide alike.
        begun = step(start=True, end=True, sequence_id=str(number))
        decisions = set()
        for _ in range(2):
            traffic = Traffic()
            traffic.weight = 20
            decisions |= {traffic.side_of_request(begun), traffic.side_of_request(begun)}
        sides += decisions
    assert len(sides) == 10_000
    assert 1900 < sides.count(Side.NEW) < 2100


@pytest.mark.parametrize("ended", [True, False])
def test_an_id_moves_after_its_copies(ended: bool) -> None:
    on_their_way = {step().key}
    traffic = Traffic(has_copies=on_their_way.__contains__)
    begun = step(start=True, end=ended)
    assert traffic.side_of_request(begun) is Side.OLD
    assert not traffic.is_kept(begun)
    traffic.weight = 100
    assert traffic.side_of_request(begun) is Side.OLD
    assert traffic.is_kept(begun)
    assert traffic.side_of_request(step(start=True, sequence_id="2")) is Side.NEW
    assert not traffic.is_kept(begun)
    on_their_way.clear()
    assert traffic.side_of_request(begun) is Side.NEW
    assert not traffic.is_kept(begun)


def test_a_part_of_the_inferences_is_copied() -> None:
    traffic = Traffic(drawing([0.0, 0.004, 0.005, 0.99]))
    traffic.copied_percent = 0.5
    assert [traffic.is_copied(None) for _ in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(("percent", "copied"), [(0, False), (100, True)])
def test_all_inferences_or_none_are_copied(percent: float, copied: bool) -> None:
    traffic = Traffic()
    traffic.copied_percent = percent
    steps = [None, *(step(sequence_id=str(number)) for number in range(1000))]
    assert {traffic.is_copied(each) for each in steps} == {copied}


def test_a_sequence_is_copied_as_a_whole_or_not_at_all() -> None:
    copied = 0
    for number in range(10_000):
        # Two proxies decide alike.
        decisions = set()
        for start, end in ((True, False), (False, False), (False, True)):
            traffic = Traffic()
            traffic.copied_percent = 20
            part = step(start=start, end=end, sequence_id=str(number))
            decisions.add(traffic.is_copied(part))
        [is_copied] = decisions
        copied += is_copied
    assert 1900 < copied < 2100


def test_any_sequence_id_of_json_has_a_decision() -> None:
    assert Traffic().is_copied(step(sequence_id="\udc80"))


def test_the_other_side() -> None:
    assert (Side.OLD.other, Side.NEW.other) == (Side.NEW, Side.OLD)


def test_the_oldest_sequences_are_forgotten_first() -> None:
    traffic = Traffic()
    traffic.weight = 100
    for number in range(module._MAX_SEQUENCES + 1):
        traffic.side_of_request(step(start=True, sequence_id=str(number)))
    assert len(traffic.open_sequences) == module._MAX_SEQUENCES
    assert traffic.side_of_request(step(sequence_id="0")) is Side.OLD
    for number in range(module._MAX_SEQUENCES + 1):
        traffic.side_of_request(step(start=True, end=True, sequence_id=str(number)))
    assert len(traffic._ended) == module._MAX_SEQUENCES
