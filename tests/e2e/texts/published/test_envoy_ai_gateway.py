"""Envoy AI Gateway: the requests of its recorded exchanges, and the fields of their responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.texts.published.text_site import ANTHROPIC_TOOL, CALL, TOOL, Site, user
from tests.support.models.text_models import MAX_TOKENS

pytestmark = pytest.mark.slow


CHOICE = {"finish_reason", "index"}
MESSAGE = {"content", "refusal", "role"}
SCHEMA = {
    "name": "final_output",
    "strict": True,
    "schema": {
        "$defs": {
            "Item": {
                "type": "object",
                "properties": {"found": {"type": "boolean"}},
                "required": ["found"],
                "additionalProperties": False,
            }
        },
        "type": "object",
        "properties": {
            "items": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/Item"}}
        },
        "required": ["items"],
        "additionalProperties": False,
    },
}


def check_usage(usage: dict[str, int]) -> None:
    assert usage.keys() >= {"completion_tokens", "prompt_tokens", "total_tokens"}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "messages": [
                {"role": "developer", "content": "Be helpful."},
                *user("Hello!"),
                {"role": "assistant", "content": "Hello! What is it?"},
                *user("How is the weather?"),
            ],
            "temperature": 1,
        },
        {
            "messages": [{"role": "developer", "content": "I write programs."}, *user("Hello!")],
            "max_completion_tokens": 100,
            "temperature": 1,
        },
    ],
)
def test_recorded_chats(site: Site, fields: dict[str, Any]) -> None:
    asked = {"model": "chat", "messages": user("Hello!"), **fields}
    body = site.post("/v1/chat/completions", asked)
    assert body.keys() >= {"choices", "created", "id", "model", "object", "usage"}
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice.keys() >= CHOICE | {"message"}
    assert choice["message"].keys() >= MESSAGE
    assert choice["message"]["content"] == asked["messages"][-1]["content"]
    check_usage(body["usage"])
    streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(site.client.chat.completions.create(**streamed))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    assert (chunks[-1].choices, usage.to_dict()) == ([], body["usage"])
    del streamed["stream_options"]
    plain = list(site.client.chat.completions.create(**streamed))
    assert [chunk.usage for chunk in plain] == [None] * len(plain)


@pytest.mark.parametrize("fields", [{}, {"parallel_tool_calls": True}])
def test_recorded_calls_of_tools(site: Site, fields: dict[str, Any]) -> None:
    say = json.dumps({"say": CALL}, separators=(",", ": "))
    asked = {"model": "chat", "messages": user(say), "tools": [TOOL], "tool_choice": "auto"}
    (choice,) = site.post("/v1/chat/completions", {**asked, **fields})["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message.keys() >= MESSAGE | {"tool_calls"}
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert json.loads(call["function"]["arguments"]) == {"location": "Kiel"}
    assert call["id"]


@pytest.mark.parametrize(
    "form", [{"type": "json_object"}, {"type": "json_schema", "json_schema": SCHEMA}]
)
def test_recorded_json(site: Site, form: dict[str, Any]) -> None:
    asked = {"model": "logits", "messages": user("Make JSON."), "response_format": form, "seed": 4}
    body = site.post("/v1/chat/completions", {**asked, "max_completion_tokens": 300})
    (choice,) = body["choices"]
    if choice["finish_reason"] == "stop":
        made = json.loads(choice["message"]["content"])
        assert isinstance(made, dict)
        assert form["type"] == "json_object" or made.keys() == {"items"}
    else:
        # A model of random weights may go on with spaces or digits until its limit.
        assert choice["message"]["content"].lstrip().startswith("{")


def test_recorded_errors(site: Site) -> None:
    chats, completions = "/v1/chat/completions", "/v1/completions"
    for path, body, status, parameter, code in (
        (
            chats,
            {"model": "chat", "messages": user(None), "max_tokens": 0, "temperature": -0.5},
            400,
            None,
            None,
        ),
        (chats, {"model": "chat", "messages": []}, 400, "messages", "empty_array"),
        (chats, {"model": "none", "messages": user("Hello!")}, 404, "model", "model_not_found"),
        (
            completions,
            {"model": "logits", "prompt": "", "max_tokens": -1, "temperature": 3},
            400,
            "max_tokens",
            None,
        ),
        (completions, {"model": "none", "prompt": "a"}, 404, "model", "model_not_found"),
        ("/v1/embeddings", {"model": "none", "input": "a"}, 404, "model", "model_not_found"),
        (
            "/v1/embeddings",
            {"model": "plain", "input": [5], "dimensions": -1, "encoding_format": "invalid"},
            400,
            None,
            None,
        ),
    ):
        error = site.post(path, body, status)["error"]
        assert error.keys() == {"code", "message", "param", "type"}
        assert error["type"] == "invalid_request_error"
        assert parameter is None or error["param"] == parameter
        assert code is None or error["code"] == code


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"prompt": "def fib(n):"}, 1),
        ({"prompt": [100, 101, 102]}, 1),
        ({"prompt": ["def fib(n):", "if n:"], "n": 2, "stop": ["\n\n"]}, 4),
        ({"prompt": [[100, 101], [102]], "n": 2, "stop": ["\n\n"]}, 4),
    ],
)
def test_recorded_completions(site: Site, fields: dict[str, Any], texts: int) -> None:
    asked = {"model": "logits", "max_tokens": 25, "temperature": 0.5, "top_p": 0.9, "seed": 1}
    body = site.post("/v1/completions", {**asked, **fields})
    assert body.keys() >= {"choices", "created", "id", "model", "object", "usage"}
    assert body["object"] == "text_completion"
    assert [choice["index"] for choice in body["choices"]] == list(range(texts))
    for choice in body["choices"]:
        assert choice.keys() >= CHOICE | {"logprobs", "text"}
        assert choice["finish_reason"] in {"length", "stop"}
    check_usage(body["usage"])
    streamed = {**asked, **fields, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(site.client.completions.create(**streamed))
    written = [""] * texts
    for chunk in chunks:
        for each in chunk.choices:
            written[each.index] += each.text
    assert written == [choice["text"] for choice in body["choices"]]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.to_dict() == body["usage"]


def test_recorded_suffixes(site: Site) -> None:
    body = {"model": "logits", "prompt": "def fib(n):", "suffix": "print(fib(10))"}
    assert site.post("/v1/completions", body, 400)["error"]["param"] == "suffix"


@pytest.mark.parametrize(
    "content",
    [
        "How do I reset my password?",
        [5, 8, 9, 30],
        "cat " * (MAX_TOKENS - 2),
        ["Hello 世界! 🌍", "Здравствуй мир", "مرحبا بالعالم", "A longer text.", "🚀 ✨ § ¶ †"],
        ["   Leading", "Trailing   ", "some   between", "\tTabs\tand\nlines\r\nhere", "  \n  \t  "],
    ],
)
def test_recorded_embeddings(site: Site, content: Any) -> None:
    for encoding in ("float", "base64"):
        asked = {"model": "plain", "input": content, "encoding_format": encoding}
        body = site.post("/v1/embeddings", asked)
        assert body.keys() >= {"data", "model", "object", "usage"}
        assert body["usage"].keys() == {"prompt_tokens", "total_tokens"}
        for index, item in enumerate(body["data"]):
            assert item.keys() == {"embedding", "index", "object"}
            assert (item["index"], item["object"]) == (index, "embedding")
            assert isinstance(item["embedding"], list if encoding == "float" else str)


DELIVERY = {"name": "get_delivery_date", "arguments": '{"order": "123"}'}
SYSTEM = [{"role": "system", "content": "You are a chatbot."}]
CACHED = {"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": SYSTEM}),
        ("/v1/chat/completions", {"messages": user([CACHED])}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    *SYSTEM,
                    *user("When does order 123 come?"),
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "c1", "type": "function", "function": DELIVERY}],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": "Tomorrow."},
                ]
            },
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    *user([{"type": "text", "text": "Say 1."}]),
                    {"role": "assistant", "content": [{"type": "text", "text": "1"}]},
                    *user("And 2."),
                ]
            },
        ),
        (
            "/v1/messages",
            {"max_tokens": 50, "messages": user([{"type": "text", "text": "Hello."}])},
        ),
        ("/v1/messages", {"max_tokens": 50, "messages": user("Hello."), "system": "Be helpful."}),
        (
            "/v1/messages",
            {
                "max_tokens": 50,
                "messages": user("Rain?"),
                "tools": [{**ANTHROPIC_TOOL, "type": "custom"}],
            },
        ),
        ("/v1/responses", {"input": "Say this.", "instructions": "Be helpful."}),
    ],
)
def test_requests_at_the_gateway(site: Site, path: str, fields: dict[str, Any]) -> None:
    body = site.post(path, {"model": "chat", **fields})
    assert body["model"] == "chat"
    response = site.http.post(path, json={"model": "chat", "stream": True, **fields})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.count("data: ") > 2


def test_a_body_that_is_no_json(site: Site) -> None:
    response = site.http.post("/v1/chat/completions", content=b'{"model": "chat", "messages": [a')
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


def test_what_is_not_served(site: Site) -> None:
    path = "/openai/deployments/chat/chat/completions"
    assert site.http.post(path, json={"messages": user("Hello!")}).status_code == 404
    content = {"content": "rain", "task_type": "RETRIEVAL_QUERY"}
    for given in (content, [content]):
        error = site.post("/v1/embeddings", {"model": "plain", "input": given}, 400)["error"]
        assert error["code"] == "invalid_type"


def test_empty_texts_are_embedded(site: Site) -> None:
    body = site.post("/v1/embeddings", {"model": "plain", "input": ""})
    assert body["usage"]["prompt_tokens"] == 2
