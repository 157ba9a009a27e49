"""Texts from their parts: where they end, what is held back, and why they ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nereid_gateway.extras.openai.generation.choices import Choice, ChoiceLimits
from nereid_gateway.extras.openai.generation.deltas import Delta, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.extras.openai.generation.tool_calls import ToolCall

CALL = '<tool_call>{"name": "f"}</tool_call>'


class Events:
    """What a listener got."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.calls: list[str] = []
        self.finished = 0

    def on_text(self, _choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        assert not self.finished
        self.texts.append(text)
        self.logprobs += logprobs

    def on_tool_call(self, _choice: Choice, call: ToolCall) -> None:
        assert not self.finished
        self.calls.append(call.name)

    def on_finish(self, _choice: Choice) -> None:
        self.finished += 1


def made(parts: Sequence[str | Delta], limits: ChoiceLimits) -> tuple[Choice, Events]:
    events = Events()
    choice = Choice(0, limits, events)
    for part in parts:
        if not choice.finish_reason:
            choice.add(Delta(part, 1) if isinstance(part, str) else part)
    choice.end()
    assert events.finished == 1
    assert "".join(events.texts) == choice.text
    return choice, events


@pytest.mark.parametrize(
    ("parts", "limits", "text", "reason"),
    [
        (["a", "b"], ChoiceLimits(), "ab", "stop"),
        (["a", "b"], ChoiceLimits(max_tokens=2), "ab", "length"),
        (["a", "b"], ChoiceLimits(max_tokens=3), "ab", "stop"),
        (["a", "b", "c"], ChoiceLimits(max_tokens=2, counts_tokens=True), "ab", "length"),
        (["aST", "OPb"], ChoiceLimits(("STOP",)), "a", "stop"),
        (["aST", "Ob"], ChoiceLimits(("STOP",)), "aSTOb", "stop"),
        (["aST"], ChoiceLimits(("STOP",)), "aST", "stop"),
        (["a", Delta("b", 1, "length")], ChoiceLimits(), "ab", "length"),
        (["a", Delta("b", 1, "eos")], ChoiceLimits(max_tokens=2), "ab", "stop"),
        (["a", Delta("", 1, "stop", ends=True), "b"], ChoiceLimits(), "a", "stop"),
        ([f"x{CALL}\n"], ChoiceLimits(tool_parser="hermes"), "x", "tool_calls"),
        ([f"x{CALL}"], ChoiceLimits(), f"x{CALL}", "stop"),
        ([CALL + CALL, "more"], ChoiceLimits(tool_parser="hermes", max_calls=1), "", "tool_calls"),
        ([f"{CALL}STOP{CALL}"], ChoiceLimits(("STOP",), tool_parser="hermes"), "", "tool_calls"),
        (
            ["<tool_call>[STOP"],
            ChoiceLimits(("STOP",), tool_parser="hermes"),
            "<tool_call>[",
            "stop",
        ),
        (['{"a"', ": 1}"], ChoiceLimits(demanded_tool="f"), "", "tool_calls"),
        (['[{"name"', ': "f"}]'], ChoiceLimits(demanded_tool=""), "", "tool_calls"),
        (['{"a"', ": "], ChoiceLimits(demanded_tool="f", max_tokens=2), '{"a": ', "length"),
        (["[", "{"], ChoiceLimits(demanded_tool="", max_tokens=2), "[{", "length"),
        (["x" * (3 << 20)] * 9, ChoiceLimits(), "x" * (6 << 20), "length"),
    ],
)
def test_ends_of_texts(
    parts: list[str | Delta], limits: ChoiceLimits, text: str, reason: str
) -> None:
    choice, events = made(parts, limits)
    assert choice.text == text
    assert choice.finish_reason == reason
    assert bool(events.calls) == (reason == "tool_calls")
    assert len(events.calls) <= 1


def test_logprobs_come_with_the_text_that_was_held_back() -> None:
    tokens = [Delta(text, 1, logprobs=(TokenLogprob(text, -0.1),)) for text in ("a", "S", "T")]
    choice, events = made(tokens, ChoiceLimits(("STOP",)))
    assert events.texts == ["a", "ST"]
    assert [token.token for token in events.logprobs] == ["a", "S", "T"]
    assert choice.logprobs == events.logprobs


def test_the_first_stop_text_is_known() -> None:
    choice, _ = made(["one two"], ChoiceLimits(("two", "o", "ne")))
    assert (choice.stop_text, choice.text) == ("o", "")
