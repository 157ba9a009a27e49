"""Compliance tests of OpenResponses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.texts.published.text_site import CALL, TOOL, Site

pytestmark = pytest.mark.slow


def message(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


def check_response(body: dict[str, Any]) -> None:
    assert body["object"] == "response"
    assert body["status"] == "completed"
    assert isinstance(body["created_at"], int)
    nullable = {"error", "incomplete_details", "instructions", "previous_response_id"}
    nullable |= {"max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"}
    required = {"id", "model", "output", "tools", "tool_choice", "truncation", "text", "usage"}
    required |= {"parallel_tool_calls", "top_p", "temperature", "top_logprobs", "reasoning"}
    required |= {"presence_penalty", "frequency_penalty", "store", "background", "service_tier"}
    required |= {"metadata", "completed_at"}
    assert body.keys() >= required | nullable
    assert all(body[name] is not None for name in required)
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"].keys() >= {"cached_tokens"}
    assert usage["output_tokens_details"].keys() >= {"reasoning_tokens"}
    assert body["output"]
    for item in body["output"]:
        assert item["id"]
        assert item["status"] == "completed"
        if item["type"] == "message":
            assert item["role"] == "assistant"
            for part in item["content"]:
                assert part["type"] == "output_text"
                assert part.keys() >= {"text", "annotations", "logprobs"}
        else:
            assert item.keys() >= {"call_id", "name", "arguments"}


@pytest.mark.parametrize(
    "messages",
    [
        [message("Say hello.")],
        [message("You are a pirate.", "system"), message("Say hello.")],
        [
            message("My name is Alice."),
            message("Hello Alice!", "assistant"),
            message("What is my name?"),
        ],
        [
            message("Look it up."),
            message("I look.", "assistant", phase="commentary"),
            message("It is 4.", "assistant", phase="final_answer"),
            message("Thanks."),
        ],
    ],
)
def test_responses(site: Site, messages: list[dict[str, Any]]) -> None:
    body = site.post("/v1/responses", {"model": "chat", "input": messages})
    check_response(body)
    (item,) = body["output"]
    assert item["content"][0]["text"] == messages[-1]["content"]


def test_streamed_responses(site: Site) -> None:
    asked = {"model": "chat", "input": [message("Count from 1 to 5.")], "stream": True}
    with site.http.stream("POST", "/v1/responses", json=asked) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if "data: " in line]
    if lines[-1] == "[DONE]":
        lines.pop()
    events = [json.loads(line) for line in lines]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in events))
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    check_response(events[-1]["response"])


def test_responses_with_calls_of_tools(site: Site) -> None:
    say = json.dumps({"say": CALL}, separators=(",", ": "))
    tool = {"type": "function", **TOOL["function"]}
    asked = {"model": "chat", "input": [message(say)], "tools": [tool], "max_output_tokens": 500}
    body = site.post("/v1/responses", asked)
    check_response(body)
    (item,) = body["output"]
    assert (item["type"], item["name"]) == ("function_call", "get_weather")
    assert json.loads(item["arguments"]) == {"location": "Kiel"}


def test_responses_refuse_images(site: Site) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    asked = {"model": "chat", "input": [message([{"type": "input_text", "text": "?"}, image])]}
    error = site.post("/v1/responses", asked, 400)["error"]
    assert error["param"] == "input[0].content[1].type"
