"""Nereid's own traces, a request in each line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.trace.own_format import read_lines
from nereid_perf.inputs.trace.record import TraceInput, TraceLimits, TraceRecord, TraceSequence

FULL = {
    "at_s": 0.25,
    "model": "m",
    "version": "2",
    "inputs": {
        "X": {"shape": [1, 2], "datatype": "FP32", "data": [[1, 2]]},
        "S": {"shape": [3], "string_bytes": 40},
        "B": {"shape": [1], "b64": "AAAA"},
    },
    "sequence": {"id": 7, "start": True},
    "parameters": {"a": 1, "b": "c"},
}


def read(text: str, limits: TraceLimits | None = None) -> list[TraceRecord]:
    return [*read_lines("t.jsonl", io.StringIO(text), limits or TraceLimits())]


def test_all_members() -> None:
    (record,) = read(json.dumps(FULL))
    assert record.place == "t.jsonl:1"
    assert (record.at_ns, record.model, record.version) == (250_000_000, "m", "2")
    assert record.inputs == (
        TraceInput("X", (1, 2), "FP32", [[1, 2]]),
        TraceInput("S", (3,), string_bytes=40),
        TraceInput("B", (1,), raw=b"\0\0\0"),
    )
    assert record.sequence == TraceSequence(7, is_start=True, is_end=False)
    assert record.parameters == (("a", 1), ("b", "c"))


def test_time_and_model_are_enough_and_empty_lines_are_skipped() -> None:
    records = read('\n{"at_s": 1, "model": "m"}\n  \n{"at_s": 2, "model": "n"}')
    assert [(each.place, each.at_ns, each.inputs) for each in records] == [
        ("t.jsonl:2", 10**9, None),
        ("t.jsonl:4", 2 * 10**9, None),
    ]


def test_equal_inputs_have_equal_keys() -> None:
    other = {**FULL, "at_s": 5, "sequence": {"id": "x"}}
    third = {**FULL, "parameters": {"a": 2}}
    one, same, different = read("\n".join(map(json.dumps, (FULL, other, third))))
    assert one.key == same.key
    assert one.key != different.key


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"at_s": None}, "at_s: expected seconds"),
        ({"at_s": -1}, "at_s: expected seconds"),
        ({"at_s": float("nan")}, "at_s: expected seconds"),
        ({"at_s": float("inf")}, "at_s: expected seconds"),
        ({"at_s": 10**400}, "at_s: expected seconds"),
        ({"at_s": "1"}, "at_s: expected seconds"),
        ({"at_s": True}, "at_s: expected seconds"),
        ({"model": ""}, "model: expected a model's name"),
        ({"model": 3}, "model: expected a model's name"),
        ({"version": 3}, "version: expected a string"),
        ({"time": 3}, "unknown member 'time': expected at_s"),
        ({"inputs": []}, "inputs: expected a JSON object"),
        ({"inputs": {"X": 3}}, r"inputs\.X: expected a JSON object"),
        ({"inputs": {"X": {}}}, r"inputs\.X\.shape: expected whole numbers"),
        ({"inputs": {"X": {"shape": [-1]}}}, r"inputs\.X\.shape: expected whole numbers"),
        ({"inputs": {"X": {"shape": [1.0]}}}, r"inputs\.X\.shape: expected whole numbers"),
        ({"inputs": {"X": {"shape": [1] * 2000}}}, r"inputs\.X\.shape: expected whole numbers"),
        ({"inputs": {"X": {"shape": [], "datatype": "F"}}}, r"X\.datatype: expected one of BF16"),
        ({"inputs": {"X": {"shape": [], "datatype": []}}}, r"X\.datatype: expected one of BF16"),
        ({"inputs": {"X": {"shape": [], "data": 3}}}, r"inputs\.X\.data: expected an array"),
        ({"inputs": {"X": {"shape": [], "b64": "-"}}}, r"inputs\.X\.b64: expected a string"),
        ({"inputs": {"X": {"shape": [], "b64": 3}}}, r"inputs\.X\.b64: expected a string"),
        ({"inputs": {"X": {"shape": [], "b64": "", "data": []}}}, "expected data or b64"),
        ({"inputs": {"X": {"shape": [], "string_bytes": -1}}}, "string_bytes: expected a whole"),
        ({"sequence": 3}, "sequence: expected a JSON object"),
        ({"sequence": {"id": 0}}, r"sequence\.id: expected a number from 1"),
        ({"sequence": {"id": ""}}, r"sequence\.id: expected a number from 1"),
        ({"sequence": {"id": 1 << 63}}, r"sequence\.id: expected a number from 1"),
        ({"sequence": {"id": True}}, r"sequence\.id: expected a number from 1"),
        ({"sequence": {"id": 1, "start": 1}}, "sequence: start and end: expected true"),
        ({"sequence": {"id": 1, "begin": True}}, "sequence: unknown member 'begin'"),
        ({"parameters": []}, "parameters: expected a JSON object"),
        ({"parameters": {"a": None}}, r"parameters\.a: expected a string, a number"),
        ({"parameters": {"a": 1 << 70}}, r"parameters\.a: expected a string, a number"),
    ],
)
def test_malformed_lines(change: dict[str, Any], text: str) -> None:
    lines = json.dumps(FULL) + "\n" + json.dumps({**FULL, **change})
    with pytest.raises(InputError, match=rf"t\.jsonl:2: .*{text}"):
        read(lines)


@pytest.mark.parametrize("text", ["{", "[]", "3", "[" * 100_000, '{"at_s": ' + "1" * 5000 + "}"])
def test_lines_that_are_no_objects(text: str) -> None:
    with pytest.raises(InputError, match=r"t.jsonl:1: expected a JSON object"):
        read(text)


def test_long_line_is_not_read_to_its_end() -> None:
    file = io.StringIO("x" * 100_000)
    with pytest.raises(InputError, match=r"t\.jsonl:1: the line has more than 1000 characters"):
        [*read_lines("t.jsonl", file, TraceLimits(object_chars=1000))]
    assert file.tell() == 1001


@given(st.integers(0, 400), st.text(max_size=3), st.integers(0, 20))
def test_damaged_line_is_read_or_refused(position: int, insertion: str, removed: int) -> None:
    text = json.dumps(FULL)
    position %= len(text)
    refusal = ""
    try:
        read(text[:position] + insertion + text[position + removed :])
    except InputError as error:
        refusal = str(error)
    assert not refusal or refusal.startswith("t.jsonl:")
