"""Whom a scheduler asks for first runs, and when it waits for nobody any more."""

from collections.abc import Hashable, Sequence

from nereid.core.wire.messages import InferResponse
from nereid_scheduler.versions.waits.recalls import (
    Decision,
    FirstRunEnd,
    Recall,
    Recalls,
    ReportQuery,
)

GRACE_S, TAKEOVER_S = 3.0, 0.75
LATER_S = 100.0
RESPONSE = InferResponse(1)


def recalls(max_named: int = 100) -> Recalls:
    return Recalls(GRACE_S, TAKEOVER_S, max_named)


def test_what_is_named_is_recalled_and_has_its_response() -> None:
    it = recalls()
    assert it.executor_joined("x", [1, 2], LATER_S) == []
    assert it.find("r1", 1, {1}, 0.0) == [Recall("x", 1)]
    assert it.wake_at_s is None
    assert it.on_recalled("x", 1, RESPONSE) == [FirstRunEnd("r1", RESPONSE)]
    assert it.waiting == 0
    # The gateway's link may have broken before it arrived.
    assert it.find("r1 again", 1, {1}, LATER_S) == [Recall("x", 1)]


def test_what_is_not_named_waits_for_the_grace_period() -> None:
    it = recalls()
    assert it.find("r1", 1, {1}, 0.0) == []
    assert it.find("r2", 2, {2}, 0.0) == []
    assert it.wake_at_s == GRACE_S
    assert it.executor_joined("x", [2, 3], LATER_S) == [Recall("x", 2)]
    assert it.on_time(GRACE_S - 1) == []
    assert it.on_time(GRACE_S) == [FirstRunEnd("r1", None)]
    assert it.wake_at_s is None
    assert it.find("r4", 4, {4}, GRACE_S) is None
    assert it.find("r3", 3, {3}, GRACE_S) == [Recall("x", 3)]


def test_the_grace_period_begins_when_executors_can_join() -> None:
    it = recalls()
    it.begin_grace(LATER_S)
    assert it.find("r1", 1, {1}, GRACE_S) == []
    assert it.wake_at_s == LATER_S


def test_a_run_without_a_response_ends_at_once() -> None:
    it = recalls()
    it.executor_joined("x", [1, 2], LATER_S)
    it.find("r1", 1, {1}, 0.0)
    it.find("r2", 2, {2}, 0.0)
    assert it.on_recalled("x", 1, None) == [FirstRunEnd("r1", None)]
    # Nobody waits for it any more.
    assert it.on_recalled("x", 1, None) == []
    assert it.on_recalled("x", 1, RESPONSE) == []
    assert it.executor_left("x", 0.0) == [FirstRunEnd("r2", None)]
    assert it.find("r1 again", 1, {1}, LATER_S) is None
    assert it.find("r2 again", 2, {2}, LATER_S) is None


def test_of_several_executors_the_next_one_is_asked() -> None:
    it = recalls()
    it.executor_joined("x", [1, 2], LATER_S)
    it.executor_joined("y", [1, 2], LATER_S)
    it.executor_joined("y", [2], LATER_S)
    assert it.find("r1", 1, {1}, LATER_S) == [Recall("x", 1)]
    assert it.find("r2", 2, {2}, LATER_S) == [Recall("x", 2)]
    # What another one says is no reply of the one that was asked, unless it has the response.
    assert it.on_recalled("y", 1, None) == []
    assert it.on_recalled("x", 1, None) == [FirstRunEnd("r1", None)]
    assert it.executor_left("x", LATER_S) == [Recall("y", 2)]
    assert it.on_recalled("y", 2, RESPONSE) == [FirstRunEnd("r2", RESPONSE)]


def test_a_response_counts_whoever_was_asked() -> None:
    it = recalls()
    it.executor_joined("x", [1], LATER_S)
    it.executor_joined("y", [1], LATER_S)
    it.find("r1", 1, {1}, LATER_S)
    assert it.on_recalled("y", 1, RESPONSE) == [FirstRunEnd("r1", RESPONSE)]


def test_a_request_that_is_sent_once_more_replaces_the_one_before() -> None:
    it = recalls()
    it.find("r1", 1, {1}, 0.0)
    assert it.find("r1 again", 1, {1}, 0.0) == []
    # The link that it came over first is seen to have ended.
    it.forget("r1")
    assert it.waiting == 1
    assert it.executor_joined("x", [1], LATER_S) == [Recall("x", 1)]
    assert it.find("r1 for the third time", 1, {1}, 0.0) == [Recall("x", 1)]
    it.forget("r1 again")
    assert it.on_recalled("x", 1, RESPONSE) == [FirstRunEnd("r1 for the third time", RESPONSE)]
    assert it.waiting == 0


def test_who_is_cancelled_is_forgotten() -> None:
    it = recalls()
    it.executor_joined("x", [1], LATER_S)
    it.find("r1", 1, {1, 10}, 0.0)
    it.forget("r1")
    assert (it.waiting, it.wake_at_s) == (0, None)
    assert it.on_recalled("x", 1, RESPONSE) == []
    assert it.on_time(GRACE_S) == []


def test_an_ensemble_waits_for_all_its_runs_and_has_the_response_of_its_own() -> None:
    it = recalls()
    it.executor_joined("x", [10, 11], LATER_S)
    # Its own run is not named, and nobody can name it any more.
    assert it.find("r1", 1, {1, 10, 11}, LATER_S) == [Recall("x", 10), Recall("x", 11)]
    assert it.on_recalled("x", 10, RESPONSE) == []
    assert it.on_recalled("x", 11, None) == [FirstRunEnd("r1", None)]


def test_when_the_scheduler_ends_nobody_waits() -> None:
    it = recalls()
    it.executor_joined("x", [1], LATER_S)
    it.find("r1", 1, {1}, 0.0)
    it.find("r2", 2, {2}, 0.0)
    assert it.end_waits() == [FirstRunEnd("r1", None), FirstRunEnd("r2", None)]
    assert (it.waiting, it.wake_at_s) == (0, None)
    assert it.on_recalled("x", 1, RESPONSE) == []


def taking_over(*executors: str) -> Recalls:
    """These have joined long after the start."""
    it = recalls()
    for each in executors:
        assert it.executor_joined(each, [], LATER_S) == []
    return it


def queries_of(decisions: Sequence[Decision]) -> dict[Hashable, int]:
    """Which executors are asked to report, each once."""
    queries = [each for each in decisions if isinstance(each, ReportQuery)]
    numbers = {each.executor: each.number for each in queries}
    assert len(numbers) == len(queries) == len(decisions)
    return numbers


def test_a_takeover_waits_for_the_reports_of_all_executors() -> None:
    it = taking_over("x", "y")
    queries = queries_of(it.begin_takeover(["lost"], LATER_S))
    assert it.find("r1", 1, {1}, LATER_S) == []
    assert it.find("r2", 2, {2}, LATER_S) == []
    assert it.wake_at_s == LATER_S + TAKEOVER_S
    # A report that was not asked for may be about another scheduler.
    assert it.executor_reported("x", [], 0, LATER_S) == []
    assert it.executor_reported("x", [2], queries["x"], LATER_S) == [Recall("x", 2)]
    # It has no response, but another one still has to report.
    assert it.on_recalled("x", 2, None) == []
    ends = [FirstRunEnd("r1", None), FirstRunEnd("r2", None)]
    assert it.executor_left("y", LATER_S) == ends
    assert it.find("r1 again", 1, {1}, LATER_S) is None


def test_a_takeover_waits_no_longer_than_its_grace_period() -> None:
    it = taking_over("x")
    queries = queries_of(it.begin_takeover(["lost"], LATER_S))
    it.find("r1", 1, {1}, LATER_S)
    assert it.on_time(LATER_S + TAKEOVER_S) == [FirstRunEnd("r1", None)]
    # What is named from now on has no other executor to wait for.
    assert it.executor_joined("y", [2], LATER_S + TAKEOVER_S) == []
    it.find("r2", 2, {2}, LATER_S + TAKEOVER_S)
    assert it.on_recalled("y", 2, None) == [FirstRunEnd("r2", None)]
    assert it.executor_reported("x", [], queries["x"], LATER_S + 1) == []


def test_an_executor_that_joins_meanwhile_is_asked_too() -> None:
    it = taking_over("x")
    first = queries_of(it.begin_takeover(["lost"], LATER_S))
    it.find("r1", 1, {1}, LATER_S)
    second = queries_of(it.executor_joined("y", [], LATER_S))
    assert it.executor_reported("x", [], first["x"], LATER_S) == []
    assert it.executor_reported("y", [], second["y"], LATER_S) == [FirstRunEnd("r1", None)]


def test_each_lost_scheduler_is_asked_about() -> None:
    it = taking_over("x")
    first = queries_of(it.begin_takeover(["a"], LATER_S))
    it.find("r1", 1, {1}, LATER_S)
    second = queries_of(it.begin_takeover(["b"], LATER_S))
    assert it.executor_reported("x", [], first["x"], LATER_S) == []
    assert [each.scheduler for each in it.executor_joined("y", [], LATER_S)] == ["a", "b"]  # type: ignore[union-attr]
    assert it.executor_left("y", LATER_S) == []
    assert it.executor_reported("x", [], second["x"], LATER_S) == [FirstRunEnd("r1", None)]


def test_a_member_without_models_is_no_reason_to_wait() -> None:
    it = taking_over("x")
    assert it.begin_takeover([], LATER_S) == []
    assert it.find("r1", 1, {1}, LATER_S) is None


def test_without_executors_a_takeover_waits_for_those_that_join() -> None:
    it = recalls()
    assert it.begin_takeover(["lost"], LATER_S) == []
    assert it.find("r1", 1, {1}, LATER_S) == []
    recall, query = it.executor_joined("x", [1], LATER_S)
    assert recall == Recall("x", 1)
    assert isinstance(query, ReportQuery)


def test_a_takeover_right_after_the_start_waits_as_the_start_does() -> None:
    it = recalls()
    it.executor_joined("x", [], 0.0)
    assert it.begin_takeover(["lost"], 1.0) == []
    it.find("r1", 1, {1}, 1.0)
    assert it.executor_reported("x", [], 0, 1.0) == []
    assert it.executor_joined("y", [], 1.0) == []
    assert it.wake_at_s == GRACE_S


def test_of_many_named_runs_the_oldest_are_forgotten() -> None:
    it = recalls(max_named=2)
    it.executor_joined("x", [1, 2], LATER_S)
    it.executor_joined("x", [3], LATER_S)
    assert it.find("r1", 1, {1}, LATER_S) is None
    assert it.find("r3", 3, {3}, LATER_S) == [Recall("x", 3)]
    # Forgotten while it is asked for.
    it.executor_joined("x", [4, 5], LATER_S)
    assert it.on_recalled("x", 3, None) == [FirstRunEnd("r3", None)]
