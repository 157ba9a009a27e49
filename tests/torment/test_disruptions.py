"""Faults of a campaign: a seed decides them, and every kind takes place.

Kept as a test of an oracle: a fault that never takes place lets every campaign pass.
"""

from itertools import islice

import pytest

from tests.torment.disruptions import KINDS, Disruption, schedule, selected, targets_of
from tests.torment.services import Shape

NAMES = Shape(gateways=2, schedulers=2, executors=3).names()


def test_a_seed_replays() -> None:
    def disruptions(seed: int) -> list[Disruption]:
        return list(islice(schedule(seed, list(KINDS), NAMES, 4.0), 300))

    assert disruptions(1) == disruptions(1) != disruptions(2)
    assert {each.kind for each in disruptions(1)} == set(KINDS)


def test_every_kind_has_targets_in_a_mesh() -> None:
    for kind in KINDS:
        assert targets_of(kind, NAMES)
    assert targets_of("kill-scheduler", NAMES) == ["scheduler-0", "scheduler-1"]
    assert "scheduler-0,scheduler-1" in targets_of("partition", NAMES)
    assert targets_of("join", NAMES) == [""]


def test_names_of_disruptions_are_kinds_or_begins_of_them() -> None:
    assert selected(["kill-redis", "roll"]) == [
        "kill-redis",
        "roll-gateway",
        "roll-scheduler",
        "roll-executor",
        "roll-cache",
    ]
    with pytest.raises(ValueError, match="no fault is called 'flood'"):
        selected(["flood"])
    assert set(KINDS) - set(selected(["all"])) == {"clock"}
