"""Decisions as rows in a scheduler's queue, and what is refused before one is queued."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from nereid.core.wire.messages import ModelsChanged
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from tests.support.gateway.gateway_http import ask
from tests.support.gateway.gateway_site import FP32_TYPE, GatewaySite, gateway_site
from tests.support.models import text_models

INT64_TYPE = 9
LEVELS = [{"label": "low"}, {"label": "high"}]


def described(model: str) -> pb.ModelTextResponse:
    """A model whose logits are the numbers of the tokens of a pair, of which the first is [CLS]."""
    config = model_config_pb2.ModelConfig(name=model, backend="onnxruntime", max_batch_size=8)
    config.input.add(name="INPUT0", data_type=INT64_TYPE, dims=[-1])
    config.output.add(name="OUTPUT0", data_type=FP32_TYPE, dims=[1])
    text = {"task": "decide", "inputs": {"ids": "INPUT0"}, "max_tokens": 128}
    files = {
        "tokenizer.json": text_models.tokenizer().to_str().encode(),
        "text.json": json.dumps(text).encode(),
    }
    return pb.ModelTextResponse(version="1", config=config, digest=b"1", files=files)


@asynccontextmanager
async def decision_site() -> AsyncIterator[GatewaySite]:
    async with gateway_site(openai_api=True) as site:
        for model in ("echo", "hold"):
            site.scheduler.texts[model] = described(model)
        yield site


def predicate(**fields: Any) -> dict[str, Any]:
    return {"type": "predicate", "instructions": "rain", **fields}


def choice(*values: Any) -> dict[str, Any]:
    choices = [{"value": value} for value in values]
    return {"type": "choice", "instructions": "who", "choices": choices}


def body(questions: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "echo", "input": "cat", "questions": questions, **fields}).encode()


async def test_each_statement_is_a_row() -> None:
    questions = [predicate(name="a"), choice("cat", "dog", "rain"), predicate()]
    async with decision_site() as site:
        response = await ask(site, "POST", "/openai/v1/decisions", body(questions))
        rows = site.scheduler.received
    assert response.status == 200
    content = json.loads(response.body)
    assert [each["name"] for each in content["answers"]] == ["a", None, None]
    heads = [kserve_pb2.ModelInferRequest.FromString(row.head) for row in rows]
    # [CLS] cat [SEP] rain [SEP], and a word more for each choice. The longest come first.
    lengths = [head.inputs[0].shape[1] for head in heads]
    assert lengths == sorted(lengths, reverse=True)
    assert content["usage"]["input_tokens"] == sum(lengths)


async def test_an_input_is_read_as_lines() -> None:
    items = [
        {"role": "system", "content": [{"type": "input_text", "text": "rain"}]},
        {"type": "function_call", "call_id": "1", "name": "on", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "mat"},
    ]
    async with decision_site() as site:
        response = await ask(site, "POST", "/v1/decisions", body([predicate()], input=items))
        (row,) = site.scheduler.received
    assert response.status == 200
    expected = text_models.tokenizer().encode(
        "system: rain\non called: {}\non returned: mat", "rain"
    )
    payload: Any = row.payloads[0]
    assert np.frombuffer(payload, np.int64).tolist() == expected.ids


IMAGE = {"type": "input_image", "image_url": "data:,"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "x"}
CALL = {"type": "custom_tool_call", "call_id": "1", "input": "x", "name": "x"}
DEEP: list[Any] = []
for _ in range(40):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("fields", "parameter", "code"),
    [
        ({"questions": []}, "questions", "empty_array"),
        ({"questions": [predicate()] * 401}, "questions", "array_above_max_length"),
        (
            {"questions": [choice(*map(str, range(255)))] * 17},
            "questions",
            "array_above_max_length",
        ),
        (
            {"questions": [predicate(), choice("a")]},
            "questions[1].choices",
            "array_below_min_length",
        ),
        (
            {"questions": [choice(*map(str, range(256)))]},
            "questions[0].choices",
            "array_above_max_length",
        ),
        ({"questions": [choice(True, "a", True)]}, "questions[0].choices", "invalid_value"),
        ({"questions": [choice(1, 2)]}, "questions[0].choices[0].value", "invalid_type"),
        ({"questions": [{"type": "other"}]}, "questions[0].type", "invalid_value"),
        (
            {"questions": [{"type": "score", "instructions": "", "levels": LEVELS[:1]}]},
            "questions[0].levels",
            "array_below_min_length",
        ),
        ({"questions": [predicate(extra=1)]}, "questions[0].extra", "unknown_parameter"),
        (
            {"questions": [predicate(instructions=[IMAGE])]},
            "questions[0].instructions[0]",
            "unsupported_image",
        ),
        ({"temperature": 1}, "temperature", "unknown_parameter"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl", "invalid_value"),
        ({"input": []}, "input", "empty_array"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": {}}]}, "input[0].role", "invalid_value"),
        ({"input": [{"type": "reasoning"}]}, "input[0].type", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0].content", "invalid_type"),
        (
            {"input": [{"role": "user", "content": [IMAGE]}]},
            "input[0].content[0]",
            "unsupported_image",
        ),
        ({"input": [{"role": "system", "content": [IMAGE]}]}, "input[0].content[0].type", None),
        ({"input": [OUTPUT]}, "input[0].call_id", "invalid_value"),
        ({"input": [CALL, OUTPUT]}, "input[1].call_id", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": {"": DEEP}}]}]},
            "input[0].content[0].data",
            None,
        ),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_json", "data": [{}] * 10_000}]}
                ]
            },
            "input[0].content[0].data",
            None,
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": 1}]}]},
            "input[0].content[0].data",
            "invalid_type",
        ),
        ({"input": "cat " * 150}, "input", "context_length_exceeded"),
        ({"model": "none"}, "model", "model_not_found"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    fields: dict[str, Any], parameter: str, code: str | None
) -> None:
    async with decision_site() as site:
        content = body(**{"questions": [predicate()], **fields})
        response = await ask(site, "POST", "/v1/decisions", content)
        again = await ask(site, "POST", "/v1/decisions", body([predicate()]))
    assert response.status in {400, 404}, response.body
    error = json.loads(response.body)["error"]
    assert error["param"] == parameter, error
    assert code is None or error["code"] == code, error
    assert again.status == 200


async def test_a_question_that_is_too_long_beside_the_input_is_refused_alone() -> None:
    questions = [predicate(instructions="cat " * 150), predicate()]
    async with decision_site() as site:
        response = await ask(site, "POST", "/v1/decisions", body(questions))
        await ask(site, "POST", "/v1/decisions", body(questions[:1]))
        assert len(site.scheduler.received) == 1
    first, second = json.loads(response.body)["answers"]
    assert first == {
        "type": "refusal",
        "name": None,
        "reason": "questions[0]: with the input it has 154 tokens, but the model reads up to 128",
    }
    assert second["type"] == "predicate"


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (b"{", 400, "invalid_request"),
        (b'{"questions": {}}', 400, "invalid_request"),
        (b'{"questions": {"q": 1}}', 400, "invalid_request"),
        (b'{"questions": {"q": {"type": "predicate"}}}', 400, "invalid_request"),
        (
            b'{"questions": {"q": {"type": "noul", "criteria": {"yes": ""}}}}',
            400,
            "invalid_request",
        ),
        (b'{"questions": {"q": {"type": "choice"}}}', 400, "invalid_request"),
        (
            b'{"questions": {"q": {"type": "choice", "criteria": ["a", "a"]}}}',
            400,
            "invalid_request",
        ),
        (b'{"questions": {"q": {"type": "choice", "criteria": {"": 1, "a": 1}}}}', 400, None),
        (b'{"questions": {"q": {"type": "score", "criteria": ["a"]}}}', 400, "invalid_request"),
        (b'{"questions": {"q": {"type": "score", "criteria": {}}}}', 400, "invalid_request"),
        (b'{"questions": {"q": {"type": "noul"}}}', 400, "invalid_request"),
        (b'{"model": "none", "questions": {"q": {"type": "noul"}}}', 404, "model_not_found"),
        (
            b'{"model": "echo", "state": "%b", "questions": {"q": {"type": "noul"}}}'
            % (b"cat " * 150),
            422,
            "request_refused",
        ),
        (
            b'{"model": "echo", "state": %b, "questions": {"q": {"type": "noul"}}}' % (b"[" * 9000),
            400,
            None,
        ),
    ],
)
async def test_errors_of_system_one(content: bytes, status: int, kind: str | None) -> None:
    async with decision_site() as site:
        response = await ask(site, "POST", "/v1/systemone", content)
    error = json.loads(response.body)["error"]
    assert (response.status, {*error}) == (status, {"type", "message"}), error
    assert kind is None or error["type"] == kind


@pytest.mark.parametrize("depth", [100, 900, 980, 2000])
async def test_deep_states_are_read_or_refused(depth: int) -> None:
    state = b"[" * depth + b"]" * depth
    content = b'{"model": "echo", "state": %b, "questions": {"q": {"type": "noul"}}}' % state
    async with decision_site() as site:
        response = await ask(site, "POST", "/v1/systemone", content)
    assert response.status in {200, 400, 422}, response.body


@pytest.mark.parametrize("path", ["/v1/decisions", "/v1/systemone"])
async def test_halves_of_surrogate_pairs_are_read_or_refused(path: str) -> None:
    text = '"\\ud800"'
    old = '{"model": "echo", "state": %s, "questions": {%s: {"type": "noul", "instructions": %s}}}'
    new = (
        '{"model": "echo", "input": %s, "questions": [{"name": %s, "type": "predicate",'
        ' "instructions": %s}]}'
    )
    content = (new if path == "/v1/decisions" else old) % (text, text, text)
    async with decision_site() as site:
        response = await ask(site, "POST", path, content.encode())
    assert response.status in {200, 400}, response.body


async def test_a_model_is_found_without_its_name_if_there_is_one() -> None:
    content = b'{"state": "cat", "questions": {"q": {"type": "noul", "instructions": "mat"}}}'
    async with decision_site() as site:
        several = await ask(site, "POST", "/v1/systemone", content)
        del site.scheduler.texts["hold"]
        site.scheduler.link.send(ModelsChanged(1))
        response = await ask(site, "POST", "/v1/systemone", content)
    assert (several.status, json.loads(several.body)["error"]["type"]) == (400, "invalid_request")
    found = json.loads(response.body)
    assert (response.status, found["model"], {*found["answers"]}) == (200, "echo", {"q"})


async def test_system_one_refuses_a_request_before_a_row_is_sent() -> None:
    long = {"type": "noul", "instructions": "cat " * 150}
    questions = {"short": {"type": "noul", "instructions": "mat"}, "long": long}
    content = json.dumps({"model": "echo", "state": "cat", "questions": questions}).encode()
    async with decision_site() as site:
        response = await ask(site, "POST", "/v1/systemone", content)
        assert not site.scheduler.received
    assert response.status == 422
    assert json.loads(response.body)["error"]["message"].startswith("questions.long: with the inpu")
