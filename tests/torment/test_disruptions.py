"""A seed decides the faults, and nothing else does."""

from itertools import islice, pairwise

import pytest

from tests.torment.availability import Gap, by_kind, gaps, quiet_gap
from tests.torment.disruptions import KINDS, Disruption, Occurrence, schedule, selected, targets_of
from tests.torment.history import Outcome, Request
from tests.torment.services import Shape

NAMES = Shape(gateways=2, schedulers=2, executors=3).names()


def test_a_seed_replays() -> None:
    def disruptions(seed: int) -> list[Disruption]:
        return list(islice(schedule(seed, list(KINDS), NAMES, 4.0), 300))

    assert disruptions(1) == disruptions(1) != disruptions(2)
    assert {each.kind for each in disruptions(1)} == set(KINDS)


def test_a_target_has_one_disruption_of_a_kind_at_a_time() -> None:
    until_s: dict[tuple[str, str], float] = {}
    last_s = 0.0
    for disruption in islice(schedule(3, list(KINDS), NAMES, 0.5), 1000):
        assert disruption.at_s >= last_s
        last_s = disruption.at_s
        key = (disruption.kind, disruption.target)
        assert until_s.get(key, 0.0) <= disruption.at_s
        until_s[key] = disruption.at_s + disruption.duration_s


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


def test_gaps_belong_to_the_disruptions_that_they_overlap() -> None:
    requests = []
    for number, times in enumerate(pairwise((0.0, 1.0, 2.0, 7.0, 7.5, 10.0))):
        request = Request(number, "c", "onnx", 0, times[0], ended_s=times[1])
        request.outcome = Outcome.OK
        requests.append(request)
    found = gaps(requests)
    assert [gap.length_s for gap in found] == [5.0, 2.5, 1.0, 0.5]
    kill = Occurrence(Disruption(1, "kill-executor", "executor-0", 3, 1, 0.0), 3.0, 4.0)
    stop = Occurrence(Disruption(2, "stop-cache", "cache", 3.5, 5, 0.0), 3.5, 8.5)
    rows = by_kind(found, [kill, stop])
    assert (rows["kill-executor"].longest, rows["kill-executor"].alone) == (found[0], None)
    assert (rows["stop-cache"].longest, rows["stop-cache"].alone) == (found[0], found[1])
    assert quiet_gap(found, [kill, stop]) == found[2]


def test_what_nobody_asked_for_is_no_gap() -> None:
    requests = [
        Request(1, "c", "onnx", 0, 0.0, outcome=Outcome.OK, ended_s=1.0),
        Request(2, "c", "onnx", 0, 3.0, outcome=Outcome.ERROR, ended_s=4.0),
        Request(3, "d", "onnx", 0, 3.5, outcome=Outcome.ERROR, ended_s=5.0),
        Request(4, "c", "onnx", 0, 8.0, outcome=Outcome.OK, ended_s=8.5),
        # Its client is dead.
        Request(5, "e", "onnx", 0, 9.0),
    ]
    assert gaps(requests) == [Gap("onnx", 3.0, 8.5, 2.5)]
