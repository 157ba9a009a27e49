"""The campaigns' checker: each history here breaks one rule of the contract, or seems to.

Kept as a test of an oracle: a checker that overlooks a breach lets every campaign pass.
"""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from tests.torment.checker import AFTERMATH_S, Evidence, check
from tests.torment.contract import MODELS, linear
from tests.torment.disruptions import Disruption, Occurrence
from tests.torment.history import (
    History,
    HistoryWriter,
    Outcome,
    Request,
    Result,
    Step,
    read_history,
)


def right(identity: int, model: str = "onnx", version: int = 1, at_s: float = 1.0) -> Request:
    """A request that took half a second, and its response."""
    value = identity
    result = MODELS[model].function(value, version)
    request = Request(identity, "c", model, value, at_s)
    request.outcome, request.ended_s = Outcome.OK, at_s + 0.5
    request.results = (Result(result, version),)
    return request


def failed(identity: int, status: str, text: str = "", model: str = "onnx") -> Request:
    request = right(identity, model)
    request.outcome, request.results = Outcome.ERROR, ()
    request.status, request.text = status, text
    return request


def occurrence(kind: str, target: str, began_s: float = 0.5, ended_s: float = 1.2) -> Occurrence:
    return Occurrence(
        Disruption(1, kind, target, began_s, ended_s - began_s, 0.5), began_s, ended_s
    )


def recovered(*requests: Request, version: int = 1) -> dict[int, Request]:
    """With a success of each model afterwards."""
    made = {each.id: each for each in requests}
    for number, model in enumerate(sorted({each.model for each in requests})):
        later = right(10_000 + number, model, version, at_s=1000.0)
        if MODELS[model].is_sequence:
            later.step = Step(10_000, 0, 0, 2)
            later.results = (Result(later.value, 0),)
        if not MODELS[model].at_most_once:
            made[later.id] = later
    return made


def rules(*requests: Request, version: int = 1, **more: object) -> list[str]:
    """Which rules a history breaks, after which every model serves again, by this version."""
    evidence = Evidence(History(recovered(*requests, version=version)), **more)  # type: ignore[arg-type]
    return [each.rule for each in check(evidence)]


def test_a_right_history_breaks_no_rule() -> None:
    requests = [right(each, model) for each, model in enumerate(("onnx", "ensemble", "bls"), 1)]
    assert rules(*requests) == []


def test_a_request_without_an_end_is_found() -> None:
    request = right(1)
    request.outcome, request.results = None, ()
    assert rules(request) == ["one end"]


def test_a_request_that_its_client_gave_up_is_found() -> None:
    request = right(1)
    request.outcome, request.results = Outcome.TIMEOUT, ()
    assert rules(request) == ["one end"]


def test_another_requests_response_is_found() -> None:
    request = right(1, "cached")
    request.results = right(2, "cached").results
    assert rules(request) == ["right value"]


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_number_of_responses_is_found(count: int) -> None:
    request = right(1, "decoupled")
    request.count = 2
    request.results = tuple(Result(linear(1, 1) + place, 1) for place in range(count))
    assert rules(request) == ["right number"]


def test_responses_out_of_order_are_found() -> None:
    request = right(1, "decoupled")
    request.count = 2
    request.results = tuple(Result(linear(1, 1) + place, 1) for place in (1, 0))
    assert rules(request) == ["right value", "right value"]


def test_responses_before_a_permitted_error_are_right() -> None:
    request = failed(1, "UNAVAILABLE", model="decoupled")
    request.count, request.results = 2, (Result(linear(1, 1), 1),)
    assert rules(request, occurrences=[occurrence("kill-executor", "executor-0")]) == []


def test_a_version_that_never_was_is_found() -> None:
    assert rules(right(1, version=2)) == ["version"]


def test_a_version_before_its_time_is_found() -> None:
    found = rules(right(1, version=2), version=2, written_s={"onnx": {2: 3.0}})
    assert found == ["version"]


def test_an_old_version_after_a_new_one_is_found() -> None:
    requests = [right(1, version=2, at_s=2.0), right(2, version=1, at_s=3.0)]
    written_s = {"onnx": {2: 1.5}}
    assert rules(*requests, version=2, written_s=written_s) == ["version"]
    # Both at once may end in any order.
    requests[1].began_s = 2.2
    assert rules(*requests, version=2, written_s=written_s) == []


def test_what_loads_instances_excuses_both_versions_for_a_while() -> None:
    requests = [right(1, version=2, at_s=2.0), right(2, version=1, at_s=3.0)]
    evidence = Evidence(
        History({each.id: each for each in [*requests, right(3, version=2, at_s=500.0)]}),
        [occurrence("kill-executor", "executor-0")],
        {"onnx": {2: 1.5}},
    )
    assert check(evidence) == []
    requests[1].began_s, requests[1].ended_s = 2 + AFTERMATH_S, 3 + AFTERMATH_S
    assert [each.rule for each in check(evidence)] == ["version"]


def test_a_second_run_is_found() -> None:
    assert rules(right(1, "once"), runs=[1, 1]) == ["at most once"]
    assert rules(right(1, "once"), runs=[1]) == []


def test_a_success_without_a_run_is_found() -> None:
    assert rules(right(1, "once"), runs=[]) == ["at most once"]


@pytest.mark.parametrize(
    ("status", "text", "model", "disruption"),
    [
        ("UNAVAILABLE", "", "onnx", None),
        ("UNAVAILABLE", "", "onnx", "kill-cache"),
        ("UNAVAILABLE", "", "onnx", "reload"),
        ("UNAVAILABLE", "", "onnx", "hostile"),
        ("UNAVAILABLE", "", "onnx", "roll-executor"),
        ("INTERNAL", "the worker ended", "onnx", "kill-worker"),
        ("INTERNAL", "internal error; the server's log has the cause", "python", "kill-worker"),
        ("ABORTED", "the request may have run", "onnx", "kill-executor"),
        ("NOT_FOUND", "unknown model", "onnx", "kill-scheduler"),
        ("UNAVAILABLE", "", "onnx", "kill-worker"),
        ("INTERNAL", "the worker ended", "python", "kill-scheduler"),
        ("CANCELLED", "an earlier request of the sequence was cancelled", "direct", "kill-gateway"),
    ],
)
def test_a_failure_without_a_disruption_that_permits_it_is_found(
    status: str, text: str, model: str, disruption: str | None
) -> None:
    occurrences = [occurrence(disruption, "x-0")] if disruption else []
    found = rules(failed(1, status, text, model), occurrences=occurrences)
    assert found == ["permitted failure"]


@pytest.mark.parametrize(
    ("status", "model", "disruption"),
    [
        ("UNAVAILABLE", "onnx", "kill-scheduler"),
        ("UNAVAILABLE", "onnx", "roll-gateway"),
        ("INTERNAL", "python", "stop-worker"),
        ("INTERNAL", "bls", "kill-scheduler"),
        ("ABORTED", "once", "kill-executor"),
    ],
)
def test_a_failure_that_a_disruption_permits_is_none_until_long_after(
    status: str, model: str, disruption: str
) -> None:
    request = failed(1, status, model=model)
    begins = [occurrence(disruption, "x-0")]
    good, runs = recovered(request), list[int]()
    if model == "once":
        good, runs = {1: request, 2: right(2, "once", at_s=900)}, [2]
    assert check(Evidence(History(good), begins, runs=runs)) == []
    request.began_s += AFTERMATH_S + 1
    request.ended_s += AFTERMATH_S + 1
    found = check(Evidence(History(good), begins, runs=runs))
    assert [each.rule for each in found] == ["permitted failure"]


def test_a_broken_link_permits_what_its_ends_do() -> None:
    request = failed(1, "UNAVAILABLE")
    assert rules(request, occurrences=[occurrence("partition", "gateway-0,scheduler-0")]) == []
    found = rules(request, occurrences=[occurrence("partition", "scheduler-0,cache")])
    assert found == ["permitted failure"]
    request.outcome = Outcome.DISCONNECTED
    found = rules(request, occurrences=[occurrence("partition", "gateway-0,scheduler-0")])
    assert found == ["permitted failure"]


def limited(
    identity: int,
    model: str = "onnx",
    *,
    deadline_s: float | None = None,
    cancel_s: float | None = None,
    status: str = "",
    took_s: float = 0.04,
) -> Request:
    """A request whose client set an end to it, or did not; without a status it was cancelled."""
    request = failed(identity, status, model=model)
    request.deadline_s, request.cancel_s = deadline_s, cancel_s
    request.ended_s = request.began_s + took_s
    if not status:
        request.outcome = Outcome.CANCELLED
    return request


EXPIRED = "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("model", ["onnx", "cached", "bls", "decoupled"])
def test_a_deadline_and_a_cancellation_are_the_clients_own(model: str) -> None:
    requests = [
        limited(1, model, deadline_s=0.04, status=EXPIRED),
        limited(2, model, cancel_s=0.04),
        limited(3, model, cancel_s=0.04, status="CANCELLED"),
    ]
    assert rules(*requests) == []


@pytest.mark.parametrize(
    "request_",
    [
        # Of a batchmate, or of an identical request that led.
        limited(1, status=EXPIRED),
        limited(1, cancel_s=0.02, status=EXPIRED),
        limited(1, "cached", status="CANCELLED"),
        limited(1, deadline_s=0.02, status="CANCELLED"),
        limited(1),
        limited(1, deadline_s=0.02),
        # Before its time.
        limited(1, deadline_s=0.05, status=EXPIRED),
        limited(1, cancel_s=0.05, status="CANCELLED"),
        # Nor does a limit permit other failures.
        limited(1, deadline_s=0.02, status="UNAVAILABLE"),
        limited(1, cancel_s=0.02, status="INTERNAL"),
    ],
    ids=lambda each: f"{each.status or each.outcome}-{each.deadline_s}-{each.cancel_s}",
)
@pytest.mark.parametrize("occurrences", [[], [occurrence("kill-cache", "cache")]])
def test_a_deadline_or_cancellation_of_nobodys_is_found(
    request_: Request, occurrences: list[Occurrence]
) -> None:
    assert rules(request_, occurrences=occurrences) == ["permitted failure"]


@pytest.mark.parametrize("deadline_s", [0.02, 0.05])
def test_an_error_in_a_stream_says_by_its_text_that_the_deadline_passed(deadline_s: float) -> None:
    request = limited(1, "decoupled", deadline_s=deadline_s, status=EXPIRED)
    request.status, request.text = "", "the deadline passed before the request arrived"
    assert rules(request) == ([] if deadline_s == 0.02 else ["permitted failure"])


def test_a_limit_does_not_excuse_a_lost_request() -> None:
    request = limited(1, deadline_s=0.02, status=EXPIRED)
    request.outcome, request.status = None, ""
    assert rules(request) == ["one end"]


def test_a_cancelled_request_runs_once_or_not_at_all() -> None:
    cancelled = limited(1, "once", cancel_s=0.01)
    expired = limited(2, "once", deadline_s=0.01, status=EXPIRED)
    for runs in ([], [1], [1, 2]):
        assert rules(cancelled, expired, runs=runs) == []
    for runs in ([1, 1], [2, 1, 2]):
        assert rules(cancelled, expired, runs=runs) == ["at most once"]


def test_a_run_of_what_nobody_sent_is_found() -> None:
    assert rules(right(1), runs=[2]) == ["at most once"]


def test_a_cancelled_requests_responses_are_checked() -> None:
    cancelled = limited(1, "decoupled", cancel_s=0.01)
    cancelled.count, cancelled.results = 3, (Result(linear(1, 1), 1),)
    assert rules(cancelled) == []
    cancelled.results = (Result(linear(2, 1), 1),)
    assert rules(cancelled) == ["right value"]
    cancelled.results = tuple(Result(linear(1, 1) + place, 1) for place in range(4))
    assert rules(cancelled) == ["right number"]


def test_another_tensors_response_after_a_cancellation_is_found() -> None:
    """The response that a cancelled leader left in the cache, or for its followers."""
    cancelled, follower = limited(1, "cached", cancel_s=0.01), right(2, "cached")
    assert rules(cancelled, follower) == []
    follower.results = right(1, "cached").results
    assert rules(cancelled, follower) == ["right value"]


def test_a_sequence_begins_anew_after_a_cancellation() -> None:
    requests = sequence(1, 2, 3)[:2]
    requests[1].outcome, requests[1].results = Outcome.CANCELLED, ()
    requests[1].cancel_s = 0.01
    again = sequence(4, 5, attempt=1)
    assert rules(*requests, *again) == []
    # The sum has what was cancelled in it.
    again[0].results = (Result(again[0].results[0].value + 2, 0),)
    assert rules(*requests, *again) == ["sequence"]


def test_a_client_that_goes_on_after_a_cancellation_is_found() -> None:
    requests = sequence(1, 2, 3)
    requests[1].outcome, requests[1].results = Outcome.CANCELLED, ()
    requests[1].cancel_s = 0.01
    assert rules(*requests) == ["sequence"]


def sequence(*values: int, attempt: int = 0, model: str = "oldest") -> list[Request]:
    """The sequence 50 from its begin, with right responses."""
    requests, total = [], 0
    for number, value in enumerate(values):
        total += value
        request = Request(100 * attempt + number + 1, "c", model, value, attempt * 10.0 + number)
        request.step = Step(50, attempt, number, len(values))
        is_last = number == len(values) - 1
        end = 50 if is_last and MODELS[model].adds_id else 0
        request.outcome, request.ended_s = Outcome.OK, request.began_s + 0.5
        request.results = (Result(total + end, 0),)
        requests.append(request)
    return requests


def test_right_sequences_break_no_rule() -> None:
    assert rules(*sequence(1, 2, 3)) == []
    assert rules(*sequence(1, 2, 3, model="direct")) == []


def test_a_state_that_lacks_a_request_is_found() -> None:
    requests = sequence(1, 2, 3)
    requests[1].results = (Result(2, 0),)
    assert rules(*requests) == ["sequence"]


def test_a_sequence_begins_anew_after_one_error() -> None:
    requests = sequence(1, 2)
    requests[1].outcome, requests[1].results = Outcome.ERROR, ()
    requests[1].status, requests[1].text = "UNAVAILABLE", "the state of sequence 50 is lost: why"
    again = sequence(4, 5, attempt=1)
    occurrences = [occurrence("kill-executor", "executor-0")]
    assert rules(*requests, *again, occurrences=occurrences) == []
    # But not with an error about a state that it does not need.
    again[0].outcome, again[0].results = Outcome.ERROR, ()
    again[0].status, again[0].text = requests[1].status, requests[1].text
    assert rules(*requests, again[0], occurrences=occurrences) == ["sequence"]


def test_a_client_that_goes_on_after_an_error_is_found() -> None:
    requests = sequence(1, 2)
    requests[0].outcome, requests[0].results = Outcome.ERROR, ()
    requests[0].status = "UNAVAILABLE"
    found = rules(*requests, occurrences=[occurrence("kill-executor", "executor-0")])
    assert found == ["sequence"]


def test_a_start_that_is_asked_for_is_permitted_later_in_a_sequence_alone() -> None:
    text = "inference request for sequence 50 to model 'oldest' must specify the START flag on ..."
    occurrences = [occurrence("kill-scheduler", "scheduler-0")]
    for number, expected in ((1, []), (0, ["permitted failure"])):
        requests = sequence(1, 2)[: number + 1]
        requests[-1].outcome, requests[-1].results = Outcome.ERROR, ()
        requests[-1].status, requests[-1].text = "INVALID_ARGUMENT", text
        assert rules(*requests, occurrences=occurrences) == expected


def test_a_model_that_does_not_come_back_is_found() -> None:
    history = History({1: right(1), 2: right(2, "steady", at_s=9.0)})
    evidence = Evidence(history, [occurrence("reload", "")])
    assert [each.rule for each in check(evidence)] == ["recovery"]
    assert "onnx" in check(evidence)[0].text


def test_a_history_is_read_as_it_was_written() -> None:
    file = io.StringIO()
    writer = HistoryWriter(file)
    requests = [*sequence(1, 2), failed(7, "UNAVAILABLE", "why"), right(8, "large")]
    requests.append(replace(right(9, "decoupled"), count=3, retry_of=8))
    requests.append(replace(limited(10, "large", cancel_s=0.01), elements=12_000))
    requests.append(limited(11, deadline_s=0.01, status=EXPIRED))
    for each in requests:
        writer.begin(each)
    for each in requests:
        writer.end(each)
    lines = file.getvalue().splitlines()
    assert read_history(lines) == History({each.id: each for each in requests})
    twice = read_history([*lines, lines[-1], lines[0], '{"end":77,"outcome":"ok","ended_s":1}'])
    assert sorted(twice.repeated) == sorted([requests[-1].id, requests[0].id, 77])
    assert {each.rule for each in check(Evidence(twice))} >= {"one end"}
