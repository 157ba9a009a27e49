"""Bodies of OpenAI's API with values of any kind, at a real gateway whose models repeat texts."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.extras.openai.calls import TextCall
from tests.integration.gateway import test_decisions, test_texts
from tests.support.gateway.gateway_http import LIMIT_S, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.gateway.text_bodies import BODIES
from tests.support.waiting import until

STRING_TYPE = 13
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
MODELS = {"/v1/decisions": "decider", "/v1/embeddings": "encoder", "/v1/rerank": "encoder"}
GENERATOR = "generator"
# The keys of its error.
ANTHROPIC_ERROR = {"type": "error", "error": ["type", "message"]}

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
LEAVES |= st.sampled_from([1 << 31, 1 << 64, "\ud800", "x" * 5000, "user", "text", "{"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value in a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in pairs:
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from places(child, (*path, key))


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, bytes]:
    """A route, and a body for it with up to three values exchanged, added or left out."""
    route = draw(st.sampled_from([*BODIES]))
    body_type, fields = BODIES[route]
    document = {"model": MODELS.get(route, GENERATOR), **copy.deepcopy(fields)}
    for _ in range(draw(st.integers(0, 3))):
        *path, key = draw(st.sampled_from([*places(document)]))
        parent: Any = document
        for each in path:
            parent = parent[each]
        match draw(st.integers(0, 2)):
            case 0:
                parent[key] = draw(VALUES)
            case 1:
                del parent[key]
            case _:
                document[draw(st.sampled_from(body_type.__struct_fields__))] = draw(VALUES)
        if not document:
            break
    return route, json.dumps(document).encode()


def generator() -> pb.ModelTextResponse:
    config = model_config_pb2.ModelConfig(name=GENERATOR, backend="python")
    config.model_transaction_policy.decoupled = True
    config.input.add(name="INPUT0", data_type=STRING_TYPE, dims=[1])
    config.output.add(name="OUTPUT0", data_type=STRING_TYPE, dims=[1])
    text = {"task": "generate", "generation": {"chat_template": TEMPLATE}}
    return pb.ModelTextResponse(
        version="1", config=config, digest=b"g", files={"text.json": json.dumps(text).encode()}
    )


def is_error(route: str, document: Any) -> bool:
    if route == "/v1/messages":
        return {**document, "error": [*document["error"]]} == ANTHROPIC_ERROR
    return test_texts.is_error(route, document)


async def ask(site: GatewaySite, route: str, content: bytes) -> tuple[int, bytes]:
    """Status and body of a call, which may be a stream of events."""
    reader, writer = await connect(site)
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    async with asyncio.timeout(LIMIT_S):
        lines, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(lines.split()[1]), body


@asynccontextmanager
async def site_of_all() -> AsyncIterator[GatewaySite]:
    async with gateway_site(openai_api=True) as site:
        site.scheduler.texts |= {
            GENERATOR: generator(),
            "encoder": test_texts.described("encoder"),
            "decider": test_decisions.described("decider"),
            "fail": test_texts.described("fail"),
        }
        site.scheduler.models = (*site.scheduler.texts,)
        yield site


async def check(asked: list[tuple[str, bytes]]) -> None:
    async with site_of_all() as site:
        for route, content in asked:
            status, body = await ask(site, route, content)
            found = route, content[:2000], status, body[:500]
            assert status in {200, 400, 404}, found
            if status != 200:
                assert is_error(route, json.loads(body)), found
        for route, (_, fields) in BODIES.items():
            document = {"model": MODELS.get(route, GENERATOR), **fields}
            status, body = await ask(site, route, json.dumps(document).encode())
            assert status == 200, (route, body)


@settings(max_examples=8)
@given(st.lists(calls(), min_size=20, max_size=20))
def test_any_body_is_served_or_refused(asked: list[tuple[str, bytes]]) -> None:
    asyncio.run(check(asked))


@pytest.mark.nightly
@settings(settings.get_profile("searching"), max_examples=400)
@given(st.lists(calls(), min_size=50, max_size=50))
def test_many_bodies_are_served_or_refused(asked: list[tuple[str, bytes]]) -> None:
    asyncio.run(check(asked))


async def test_nothing_of_a_call_waits_until_cycles_are_collected() -> None:
    """Refused calls with large bodies would fill the memory."""
    said = {"messages": [{"role": "user", "content": "x"}]}
    asked: list[tuple[str, dict[str, Any], int]] = [
        ("/v1/embeddings", {"model": "encoder", "input": "cat"}, 200),
        ("/v1/embeddings", {"model": "encoder", "input": "a" * (2 << 20)}, 400),
        ("/v1/embeddings", {"model": "encoder", "input": "cat", "x": 1}, 400),
        ("/v1/embeddings", {"model": "none", "input": "cat"}, 404),
        ("/v1/embeddings", {"model": "fail", "input": "cat"}, 500),
        ("/v1/chat/completions", {"model": GENERATOR, **said}, 200),
        ("/v1/chat/completions", {"model": GENERATOR, **said, "stream": True}, 200),
        ("/v1/chat/completions", {"model": "talks", **said}, 500),
        ("/v1/chat/completions", {"model": "talks", **said, "stream": True}, 500),
        ("/v1/decisions", {"model": "decider", "input": "cat", "questions": []}, 400),
    ]
    async with site_of_all() as site:
        talks = generator()
        talks.config.output[0].name = "OTHER"
        site.scheduler.texts["talks"] = talks
        site.scheduler.models = (*site.scheduler.texts,)
        gc.collect()
        gc.disable()
        try:
            for route, fields, expected in asked:
                status, body = await ask(site, route, json.dumps(fields).encode())
                assert status == expected, body
                # A thread that has tokenized drops the call after the response, at any moment.
                await until(
                    lambda: not any(isinstance(each, TextCall) for each in gc.get_objects())
                )
        finally:
            gc.enable()


async def test_a_scheduler_is_not_asked_for_names_that_no_model_can_have() -> None:
    async with site_of_all() as site:
        status, body = await ask(
            site, "/v1/embeddings", json.dumps({"model": "m" * 5000, "input": "cat"}).encode()
        )
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        assert not site.scheduler.text_requests
