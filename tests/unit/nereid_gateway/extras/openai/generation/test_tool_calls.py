"""Calls of tools in the forms of several models, cut anywhere."""

from __future__ import annotations

import json

import pytest

from nereid_gateway.extras.openai.generation.tool_calls import ToolCall, make_tool_parser

KIEL = ToolCall("weather", '{"city": "Kiel"}')
ULM = ToolCall("weather", '{"city": "Ulm"}')
KIEL_JSON = '{"name": "weather", "arguments": {"city": "Kiel"}}'
ULM_JSON = '{"name": "weather", "parameters": {"city": "Ulm"}}'


def parsed(parser: str, text: str, size: int) -> tuple[str, list[ToolCall]]:
    """The text and the calls, if the text arrives in parts of this size."""
    made = make_tool_parser(parser)
    pieces: list[str | ToolCall] = []
    for begin in range(0, len(text), size):
        pieces += made.feed(text[begin : begin + size])
    pieces += made.flush()
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("parser", "text", "rest", "calls"),
    [
        ("hermes", "nothing <tool", "nothing <tool", []),
        ("hermes", f"<tool_call>\n{KIEL_JSON}\n</tool_call>", "", [KIEL]),
        (
            "hermes",
            f"So:<tool_call>{KIEL_JSON}</tool_call><tool_call>{ULM_JSON}</tool_call>.",
            "So:.",
            [KIEL, ULM],
        ),
        ("hermes", f"<tool_call>{KIEL_JSON}", "", [KIEL]),
        ("hermes", "<tool_call>no</tool_call>!", "<tool_call>no</tool_call>!", []),
        ("hermes", "<tool_call>[1]", "<tool_call>[1]", []),
        ("mistral", "text", "text", []),
        ("mistral", f"Hm[TOOL_CALLS] [{KIEL_JSON}, {ULM_JSON}]", "Hm", [KIEL, ULM]),
        (
            "mistral",
            '[TOOL_CALLS]weather{"city": "Kiel"}[TOOL_CALLS]weather[ARGS]{"city": "Ulm"}',
            "",
            [KIEL, ULM],
        ),
        ("mistral", "[TOOL_CALLS] [{]", "[TOOL_CALLS] [{]", []),
        ("llama3_json", " plain {}", " plain {}", []),
        ("llama3_json", ULM_JSON, "", [ULM]),
        ("llama3_json", f"<|python_tag|>{KIEL_JSON}; {ULM_JSON}", "", [KIEL, ULM]),
        ("llama3_json", '{"answer": 42}', '{"answer": 42}', []),
        ("llama3_json", "<|python", "<|python", []),
        ("llama3_json", "{;", "{;", []),
    ],
)
def test_calls_are_separated_from_text(
    parser: str, text: str, rest: str, calls: list[ToolCall], size: int
) -> None:
    assert parsed(parser, text, size) == (rest, calls)


@pytest.mark.parametrize(
    "call",
    [
        {"name": 1, "arguments": {}},
        {"arguments": {}},
        {"name": "f", "arguments": "3"},
        {"name": "f", "arguments": [1]},
    ],
)
def test_malformed_calls_are_text(call: object) -> None:
    text = f"<tool_call>{json.dumps(call)}</tool_call>"
    assert parsed("hermes", text, 5) == (text, [])


def test_arguments_may_be_a_text_or_missing() -> None:
    text = f"<tool_call>{json.dumps({'name': 'f', 'arguments': '{}'})}</tool_call>"
    text += '<tool_call>{"name": "g"}</tool_call>'
    assert parsed("hermes", text, 5)[1] == [ToolCall("f", "{}"), ToolCall("g", "{}")]


def test_a_call_without_end_becomes_text() -> None:
    text = "<tool_call>" + "x" * (1 << 21)
    assert parsed("hermes", text, 1 << 16) == (text, [])
    text = "[TOOL_CALLS]" + "x" * (1 << 21)
    assert parsed("mistral", text, 1 << 16) == (text, [])
    deep = "<tool_call>" + "[" * 100_000 + "</tool_call>"
    assert parsed("hermes", deep, 1 << 16) == (deep, [])
