"""Bodies of all APIs of generation with values of any type: an error names what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.openai.bodies import decode
from nereid_gateway.extras.openai.endpoints.chat import ChatBody
from nereid_gateway.extras.openai.endpoints.completions import CompletionsBody
from nereid_gateway.extras.openai.endpoints.messages import MessagesBody
from nereid_gateway.extras.openai.endpoints.responses import ResponsesBody
from nereid_gateway.extras.openai.errors import InvalidParameter
from tests.support.gateway.text_bodies import prepare

WORDS = st.sampled_from(
    ["user", "assistant", "tool", "text", "function", "message", "function_call", "x", "", "{}"]
)
KEYS = (
    *("type", "role", "content", "text", "name", "function", "arguments", "input", "tool_calls"),
    *("id", "tool_use_id", "call_id", "output", "format", "schema", "json_schema", "parameters"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)

SAID = {"role": "user", "content": "x"}


@pytest.mark.parametrize("body_type", [ChatBody, CompletionsBody, MessagesBody, ResponsesBody])
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_body_is_taken_or_refused(body_type: Any, data: st.DataObject) -> None:
    document: dict[str, Any] = {"model": "m", "max_tokens": 5}
    document |= {"messages": [{"role": "user", "content": "hi"}], "input": "hi", "prompt": "hi"}
    names = body_type.__struct_fields__
    document = {name: value for name, value in document.items() if name in names}
    document |= data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=3))
    with suppress(InvalidArgument):
        prepare(decode(json.dumps(document).encode(), body_type))


@pytest.mark.parametrize(
    ("body_type", "document", "parameter"),
    [
        (ChatBody, {"messages": [SAID], "stop": ["x"] * 1_000_000}, "stop"),
        (ChatBody, {"messages": [SAID] * 5000}, "messages"),
        (
            ChatBody,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 5000}]},
            "messages[0].content",
        ),
        (MessagesBody, {"max_tokens": 1, "messages": [SAID] * 5000}, "messages"),
        (ResponsesBody, {"input": [SAID] * 5000}, "input"),
    ],
)
def test_long_lists_are_refused(body_type: Any, document: Any, parameter: str) -> None:
    with pytest.raises(InvalidParameter, match="more than") as refused:
        prepare(decode(json.dumps({"model": "m", **document}).encode(), body_type))
    assert refused.value.parameter == parameter
