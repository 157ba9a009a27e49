"""Conversations, which a model that decides reads as one text."""

from __future__ import annotations

from typing import Any

import pytest

from nereid_gateway.extras.openai.conversations import read_input
from nereid_gateway.extras.openai.errors import InvalidParameter


def text(value: str) -> dict[str, Any]:
    return {"type": "input_text", "text": value, "prompt_cache_breakpoint": {"mode": "explicit"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("user: as it is", "user: as it is"),
        ([{"role": "user", "content": "user: a"}], "user: a"),
        (
            [{"role": "user", "type": "message", "content": [text("a"), text("b")]}],
            "a\nb",
        ),
        ([{"role": "system", "content": "a"}], "system: a"),
        (
            [{"role": "developer", "content": [text("a")]}, {"role": "user", "content": "b"}],
            "developer: a\nuser: b",
        ),
        (
            [
                {
                    "role": "assistant",
                    "phase": "commentary",
                    "content": [
                        {"type": "output_text", "text": "a"},
                        {"type": "refusal", "refusal": "b"},
                    ],
                },
            ],
            "assistant: a\nb",
        ),
        (
            [{"role": "user", "content": [{"type": "input_json", "data": {"ä": [1, None]}}]}],
            '{"ä": [1, null]}',
        ),
        (
            [
                {
                    "type": "function_call",
                    "call_id": "1",
                    "id": "f",
                    "status": "completed",
                    "namespace": "n",
                    "name": "find",
                    "arguments": '{"x": 1}',
                },
                {"type": "custom_tool_call", "call_id": "1", "name": "run", "input": "ls"},
                {"type": "custom_tool_call_output", "call_id": "1", "output": "none"},
                {"type": "function_call_output", "call_id": "1", "output": [text("some")]},
            ],
            'find called: {"x": 1}\nrun called: ls\nrun returned: none\nfind returned: some',
        ),
    ],
)
def test_items_are_lines(value: Any, expected: str) -> None:
    assert read_input(value) == expected


def test_outputs_come_after_their_calls() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "find", "arguments": ""}
    output = {"type": "function_call_output", "call_id": "1", "output": ""}
    with pytest.raises(InvalidParameter, match=r"'input\[0\]' has no call before it") as refused:
        read_input([output, call])
    assert refused.value.parameter == "input[0].call_id"


def test_json_has_the_limits_of_openais() -> None:
    nested: Any = {}
    for _ in range(31):
        nested = {"a": nested}
    for data, problem in (
        ([nested], "more than 32 levels"),
        ([{}] * 10_000, "10000 values"),
        ({"a": "b" * (256 << 10)}, "more than 262144"),
    ):
        part: dict[str, Any] = {"type": "input_json", "data": data}
        with pytest.raises(InvalidParameter, match=problem):
            read_input([{"role": "user", "content": [part]}])
    part = {"type": "input_json", "data": nested}
    assert read_input([{"role": "user", "content": [part]}]) == '{"a": ' * 31 + "{}" + "}" * 31
