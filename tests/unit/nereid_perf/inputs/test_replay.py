"""A trace's requests in order, in their sequences, by several workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.tensors.byte_elements import split_bytes
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.plan import InputPlan
from nereid_perf.inputs.replay import ReplaySource
from nereid_perf.inputs.signature import TensorSpec
from nereid_perf.inputs.source import make_source
from nereid_perf.inputs.trace.record import TraceLimits
from nereid_perf.request import Request
from tests.support.perf_plans import grpc_message, model, plan, sequence_of

X = TensorSpec("X", "INT32", (-1,))
S = TensorSpec("S", "BYTES", (-1,))


def traced(path: Path, *lines: dict[str, Any], **more: Any) -> InputPlan:
    file = path / "trace.jsonl"
    file.write_text("\n".join(json.dumps({"model": "m", **each}) for each in lines))
    models = more.pop("models", (model(X),))
    return plan(*models, traces=(str(file),), **more)


def x(*values: int) -> dict[str, Any]:
    return {"inputs": {"X": {"shape": [len(values)], "data": [*values]}}}


def replayed(made: InputPlan, worker: int = 0, workers: int = 1) -> ReplaySource:
    source = make_source(made, worker, workers)
    assert isinstance(source, ReplaySource)
    return source


def drained(source: ReplaySource) -> list[Request]:
    found = []
    while (request := source.next_request()) is not None:
        source.on_end(request)
        found.append(request)
    return found


def values(request: Request) -> Any:
    return np.frombuffer(grpc_message(request).raw_input_contents[0], "<i4").tolist()


def test_requests_come_in_the_order_of_time_from_the_first_one_on(tmp_path: Path) -> None:
    made = traced(tmp_path, {"at_s": 9, **x(3)}, {"at_s": 7, **x(1)}, {"at_s": 8.5, **x(2, 2)})
    source = replayed(made)
    assert [*source.arrivals_ns] == [0, 1_500_000_000, 2_000_000_000]
    found = drained(source)
    assert [values(each) for each in found] == [[1], [2, 2], [3]]
    assert [each.at_ns for each in found] == [*source.arrivals_ns]
    assert source.next_request() is None
    assert source.find_mismatch(found[0], b"") == ""


def test_workers_share_the_requests_in_turn(tmp_path: Path) -> None:
    lines = [{"at_s": 9 - at, **x(at)} for at in range(7)]
    found = [
        [values(each)[0] for each in drained(replayed(traced(tmp_path, *lines), worker, 3))]
        for worker in range(3)
    ]
    assert found == [[6, 3, 0], [5, 2], [4, 1]]


def test_sequence_belongs_to_one_worker_in_its_order(tmp_path: Path) -> None:
    lines = [
        {"at_s": at, **x(at), "sequence": {"id": f"s{at % 4}", "start": at < 4, "end": at > 7}}
        for at in range(12)
    ]
    found: dict[Any, list[list[int]]] = {}
    counts = []
    for worker in range(2):
        requests = drained(replayed(traced(tmp_path, *lines), worker, 2))
        counts.append(len(requests))
        for each in requests:
            found.setdefault((sequence_of(each)[0], worker), []).append(values(each))
    assert sum(counts) == 12
    assert {identity: steps for (identity, _), steps in found.items()} == {
        f"s{each}": [[each], [each + 4], [each + 8]] for each in range(4)
    }
    assert len(found) == 4


def test_busy_sequence_keeps_the_next_request_waiting(tmp_path: Path) -> None:
    made = traced(
        tmp_path,
        {"at_s": 0, "sequence": {"id": 7, "start": True}, **x(1)},
        {"at_s": 1, "sequence": {"id": 7, "end": True}, **x(2)},
        {"at_s": 2, **x(3)},
    )
    source = replayed(made)
    first = source.next_request()
    assert first is not None
    assert sequence_of(first) == (7, True, False)
    assert source.next_request() is None
    source.on_end(first)
    second = source.next_request()
    assert second is not None
    assert sequence_of(second) == (7, False, True)
    third = source.next_request()
    assert third is not None
    assert values(third) == [3]
    assert third.sequence == -1


def test_due_requests_pass_those_whose_sequence_is_busy(tmp_path: Path) -> None:
    made = traced(
        tmp_path,
        {"at_s": 0, "sequence": {"id": 7}, **x(1)},
        {"at_s": 1, "sequence": {"id": 7}, **x(2)},
        {"at_s": 2, "sequence": {"id": 7}, **x(3)},
        {"at_s": 2, **x(4)},
        {"at_s": 3, **x(5)},
    )
    source = replayed(made)
    assert source.next_due_ns() == 0
    first = source.due_request(0)
    assert first is not None
    assert source.next_due_ns() == 1_000_000_000
    assert source.due_request(1_000_000_000) is None
    assert source.next_due_ns() == 2_000_000_000
    passing = source.due_request(2_500_000_000)
    assert passing is not None
    assert values(passing) == [4]
    assert source.due_request(2_500_000_000) is None
    for wanted in ([2], [3]):
        source.on_end(first)
        first = source.due_request(2_500_000_000)
        assert first is not None
        assert values(first) == wanted
        assert source.due_request(2_500_000_000) is None
    assert first.at_ns == 2_000_000_000
    last = source.due_request(1 << 60)
    assert last is not None
    assert values(last) == [5]
    assert source.due_request(1 << 60) is None
    assert source.next_due_ns() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30), st.data())
def test_each_request_is_sent_once_and_each_sequence_in_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    lines = [
        {"at_s": at, **x(index), **({"sequence": {"id": chosen}} if chosen else {})}
        for index, (chosen, at) in enumerate(rows)
    ]
    if not lines:
        return
    source = replayed(traced(tmp_path_factory.getbasetemp(), *lines))
    pending: list[Request] = []
    sent: list[int] = []
    for elapsed in (*range(6), *[5] * len(rows)):
        while (request := source.due_request(elapsed * 10**9)) is not None:
            assert request.sequence not in {e.sequence for e in pending if e.sequence >= 0}
            pending.append(request)
            sent.append(values(request)[0])
        if pending:
            source.on_end(pending.pop(data.draw(st.integers(0, len(pending) - 1))))
    while pending:
        source.on_end(pending.pop())
        while (request := source.due_request(5 * 10**9)) is not None:
            pending.append(request)
            sent.append(values(request)[0])
    assert sorted(sent) == [*range(len(rows))]
    for sequence in (1, 2, 3):
        of_it = [index for index in sent if rows[index][0] == sequence]
        assert of_it == sorted(of_it, key=lambda index: (rows[index][1], index))


def test_inputs_are_made_up_where_the_trace_has_none(tmp_path: Path) -> None:
    made = traced(
        tmp_path,
        {"at_s": 0, "inputs": {"X": {"shape": [5]}}},
        {"at_s": 1, "inputs": {"S": {"shape": [2], "string_bytes": 3}}},
        {"at_s": 2, "parameters": {"a": True}},
        models=(model(X, TensorSpec("S", "BYTES", (1,)), shapes=()),),
    )
    with pytest.raises(InputError, match=r"input 'X' of model 'm' .*--shape X:1"):
        replayed(made)
    made = traced(
        tmp_path,
        {"at_s": 0, "inputs": {"X": {"shape": [5]}}},
        {"at_s": 1, "inputs": {"S": {"shape": [2], "string_bytes": 3}}},
        {"at_s": 2, "parameters": {"a": True}},
        {"at_s": 3},
        models=(model(TensorSpec("X", "INT32", (2,)), TensorSpec("S", "BYTES", (1,))),),
    )
    five, strings, both, again = map(grpc_message, drained(replayed(made)))
    assert [*five.inputs[0].shape] == [5]
    assert [len(each) for each in split_bytes(strings.raw_input_contents[0])] == [3, 3]
    assert [each.name for each in both.inputs] == ["X", "S"]
    assert both.parameters["a"].bool_param
    assert not again.parameters


def test_requests_to_sequence_models_outside_of_sequences_get_some(tmp_path: Path) -> None:
    lines = [{"at_s": at, **x(at)} for at in range(4)]
    models = (model(X, is_sequence=True, sequence_length=2, sequence_length_variation=0.0),)
    found = drained(replayed(traced(tmp_path, *lines, models=models, sequence_ids=(5, 100))))
    assert [sequence_of(each) for each in found] == [
        (5, True, False),
        (5, False, True),
        (6, True, False),
        (6, False, True),
    ]
    assert [values(each) for each in found] == [[0], [1], [2], [3]]


def test_only_the_plans_models_are_replayed_in_their_versions(tmp_path: Path) -> None:
    lines = [
        {"at_s": 0, **x(0)},
        {"at_s": 1, "model": "other", **x(1)},
        {"at_s": 2, "version": "2", **x(2)},
        {"at_s": 3, "version": "3", **x(3)},
    ]
    models = (model(X), model(X, version="2"))
    found = drained(replayed(traced(tmp_path, *lines, models=models)))
    assert [(values(each)[0], each.workload) for each in found] == [(0, 0), (2, 1), (3, 0)]
    assert [grpc_message(each).model_version for each in found] == ["", "2", ""]


def test_ids_and_draining(tmp_path: Path) -> None:
    source = replayed(traced(tmp_path, {"at_s": 0, **x(0)}, {"at_s": 1, **x(1)}, request_ids=True))
    request = source.next_request()
    assert request is not None
    assert grpc_message(request).id == request.id == "0-1"
    source.set_draining(draining=True)
    assert source.next_request() is None
    assert source.due_request(1 << 60) is None


@pytest.mark.parametrize(
    ("given_input", "text"),
    [
        ({"Z": {"shape": [1]}}, "the model has no input 'Z': expected X"),
        ({"X": {"shape": [2], "data": [1]}}, r"input 'X': expected 2 INT32 elements .*\[2\]"),
        ({"X": {"shape": [1], "data": ["a"]}}, "input 'X': element 0: expected a whole number"),
        ({"X": {"shape": [1], "b64": "AAA="}}, "input 'X': expected 1 INT32 elements"),
        ({"X": {"shape": [1], "datatype": "BYTES", "b64": "AAA="}}, "input 'X': incomplete string"),
        ({"X": {"shape": [1 << 40]}}, "input 'X': input 'X' of shape .* takes 4398046511104 bytes"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path: Path, given_input: dict[str, Any], text: str) -> None:
    made = traced(tmp_path, {"at_s": 0, **x(1)}, {"at_s": 1, "inputs": given_input})
    with pytest.raises(InputError, match=rf"trace\.jsonl:2: {text}"):
        replayed(made)


def test_server_without_metadata(tmp_path: Path) -> None:
    bare = (model(outputs_of_model=()),)
    with pytest.raises(InputError, match=r"trace.jsonl:1: input 'X': the server does not say"):
        replayed(traced(tmp_path, {"at_s": 0, **x(1)}, models=bare))
    given_all = {"X": {"shape": [1], "datatype": "INT32", "data": [4]}}
    made = traced(tmp_path, {"at_s": 0, "inputs": given_all}, models=bare)
    assert [values(each) for each in drained(replayed(made))] == [[4]]


def test_distinct_requests_are_bounded_and_equal_ones_kept_once(tmp_path: Path) -> None:
    limits = TraceLimits(distinct_bytes=8)
    equal = traced(tmp_path, *[{"at_s": at, **x(1, 2)} for at in range(100)])
    assert len(drained(ReplaySource(equal, 0, 1, limits))) == 100
    different = traced(tmp_path, *[{"at_s": at, **x(at)} for at in range(3)])
    with pytest.raises(InputError, match=r"trace.jsonl:3: requests that differ take more than 8"):
        ReplaySource(different, 0, 1, limits)
