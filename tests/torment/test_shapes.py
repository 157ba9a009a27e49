"""The sequence of load shapes: it depends on the seed alone, and has what was asked for."""

import itertools
import random

import pytest

from tests.torment.shapes import (
    CLIENTS,
    PACES,
    SHAPES,
    TRAITS,
    Load,
    Phase,
    Timeline,
    phases,
    selected,
)

MODELS = ["onnx", "large", "once"]


def first(count: int, seed: int = 7, names: list[str] | None = None) -> list[Phase]:
    return [*itertools.islice(phases(seed, selected(names or ["all"]), MODELS), count)]


def test_a_seed_decides_the_sequence() -> None:
    assert first(20) == first(20)
    assert first(20) != first(20, seed=8)


def test_phases_follow_each_other_and_have_all_shapes_by_turns() -> None:
    made = first(200)
    for phase, following in itertools.pairwise(made):
        assert phase.begin_s < phase.end_s == following.begin_s
    assert {each.pace for each in made} == {*PACES}
    assert {trait for each in made for trait in each.traits} == {*TRAITS}
    assert {each.clients for each in made if each.pace != "steady"} == {*CLIENTS}
    assert all(set(each.weights) == ({*MODELS} if "mix" in each.traits else set()) for each in made)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_is_named_alone_is_always_there(name: str) -> None:
    for phase in first(20, names=[name]):
        assert phase.shapes == ([name] if name in PACES else ["steady", name])


def test_without_a_name_the_load_is_steady_for_ever() -> None:
    (only,) = phases(7, [], MODELS)
    assert only.shapes == ["steady"]
    assert only.end_s == float("inf")


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="burst; there are steady"):
        selected(["mix", "burst"])


def test_all_clients_of_a_burst_wait_for_the_same_time() -> None:
    phase = Phase(0, 10.0, 30.0, "bursts", frozenset(), between_bursts_s=2.0)
    assert [phase.next_burst_s(at_s) for at_s in (10.0, 11.9, 12.0, 13.5)] == [12, 12, 14, 14]


def test_limits_are_those_of_the_traits() -> None:
    def drawn(*traits: str) -> list[tuple[float | None, float | None]]:
        phase, chance = Phase(0, 0.0, 9.0, "steady", frozenset(traits)), random.Random(1)
        return [phase.limits(chance, in_sequence=False) for _ in range(500)]

    assert {*drawn()} == {*drawn("mix", "large")} == {(None, None)}
    both = drawn("deadlines", "cancellations")
    deadlines = [deadline for deadline, _ in both if deadline]
    assert deadlines
    assert all(0.001 <= each <= 0.05 for each in deadlines)
    assert any(cancel for _, cancel in both)
    assert not any(deadline and cancel for deadline, cancel in both)
    assert all(deadline is None for deadline, _ in drawn("cancellations"))


def test_a_phase_is_found_by_its_time_in_any_order() -> None:
    made = first(5)
    load = Load(Timeline(phases(7, selected(["all"]), MODELS)), begin_s=100.0)
    for phase in reversed(made):
        assert load.phase_at(100.01 + phase.begin_s) == phase
        assert load.phase_at(100 + phase.end_s - 0.01) == phase
    assert load.phase_at(0.0) == made[0]
