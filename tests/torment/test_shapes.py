"""Load shapes of a campaign: a seed decides them, and every shape takes place.

Kept as a test of an oracle: a load that never takes place lets every campaign pass.
"""

import itertools

import pytest

from tests.torment.shapes import (
    CLIENTS,
    PACES,
    TRAITS,
    Phase,
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


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="burst; there are steady"):
        selected(["mix", "burst"])
