"""Streams of generated texts: how they end, and what the mesh sees of their clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from nereid.core.errors import Unavailable
from nereid.core.tensors.byte_elements import join_bytes, split_bytes
from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway.auth_config import key_entry
from tests.support.gateway.gateway_http import At, ask, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.waiting import until

STRING_TYPE = 13
LIMIT_S = 10
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
CHAT = {"model": "hold", "messages": [{"role": "user", "content": "hi"}]}
# A text alone would reach its limit before the sockets' buffers are full.
TEXTS = 16
STREAMED = {**CHAT, "stream": True}


def described(template: str = TEMPLATE, **generation: Any) -> pb.ModelTextResponse:
    """A model that takes text, and gives one part of a text after the other."""
    config = model_config_pb2.ModelConfig(name="hold", backend="python")
    config.model_transaction_policy.decoupled = True
    config.input.add(name="TEXT", data_type=STRING_TYPE, dims=[1])
    config.output.add(name="SAID", data_type=STRING_TYPE, dims=[1])
    section = {"chat_template": template, **generation}
    text = {"task": "generate", "generation": section}
    return pb.ModelTextResponse(
        version="1", config=config, digest=b"1", files={"text.json": json.dumps(text).encode()}
    )


@asynccontextmanager
async def site_of(
    described_model: pb.ModelTextResponse | None = None, **settings: Any
) -> AsyncIterator[GatewaySite]:
    async with gateway_site(openai_api=True, decoder_processes=1, **settings) as site:
        site.scheduler.texts["hold"] = described_model or described()
        yield site


def say(site: GatewaySite, held: InferRequest, *parts: str, last: bool = False) -> None:
    """Respond with parts of a text; last: whether no more follow."""
    for part in parts:
        head = kserve_pb2.ModelInferResponse(model_name="hold", model_version="1")
        head.outputs.add(name="SAID", datatype="BYTES", shape=[1])
        response = InferResponse(held.id, head.SerializeToString(), [join_bytes([part])])
        response.more = True
        site.scheduler.link.send(response)
    if last:
        site.scheduler.link.send(InferResponse(held.id))


async def opened(
    site: GatewaySite, target: str, document: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(site)
    content = json.dumps(document).encode()
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    return reader, writer


async def read_until(reader: asyncio.StreamReader, text: bytes) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        return await reader.readuntil(text)


def prompt_of(request: InferRequest) -> str:
    payload: Any = request.payloads[0]
    return split_bytes(payload)[0].decode()


async def test_each_part_is_an_event_as_soon_as_it_comes() -> None:
    async with site_of() as site:
        reader, writer = await opened(site, "/v1/chat/completions", STREAMED)
        held = await site.scheduler.next_held()
        assert prompt_of(held) == "hi"
        assert held.accepts_many
        for part in ("one", "two"):
            say(site, held, part)
            got = await read_until(reader, f'"content":"{part}"}}'.encode())
            assert got.count(b'"role":"assistant"') == (part == "one")
        say(site, held, last=True)
        end = await read_until(reader, b"0\r\n\r\n")
        writer.close()
    assert b'"finish_reason":"stop"' in end
    assert b"data: [DONE]\n\n" in end


async def test_a_stop_text_ends_the_model_at_once() -> None:
    async with site_of() as site:
        call = asyncio.ensure_future(
            ask(site, "POST", "/v1/chat/completions", json.dumps({**CHAT, "stop": "END"}).encode())
        )
        held = await site.scheduler.next_held()
        say(site, held, "text E", "N")
        assert site.scheduler.cancelled.empty()
        say(site, held, "D and more")
        response = await call
        assert await asyncio.wait_for(site.scheduler.cancelled.get(), LIMIT_S) == held.id
    (choice,) = json.loads(response.body)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("text ", "stop")


async def test_tokens_and_their_times_are_counted() -> None:
    async with site_of() as site:
        reader, writer = await opened(site, "/v1/chat/completions", STREAMED)
        held = await site.scheduler.next_held()
        say(site, held, "a", "b", last=True)
        await read_until(reader, b"0\r\n\r\n")
        writer.close()
        assert site.service.metrics_address is not None
        page = (await ask(At(site.service.metrics_address), "GET", "/metrics")).body.decode()
    labels = (
        'gen_ai_operation_name="chat",gen_ai_provider_name="nereid",gen_ai_request_model="hold"'
    )
    assert f"gen_ai_server_time_to_first_token_seconds_count{{{labels}}} 1" in page
    assert f"gen_ai_server_time_per_output_token_seconds_count{{{labels}}} 1" in page
    # Bounds that OpenTelemetry's conventions recommend.
    assert f'gen_ai_server_time_to_first_token_seconds_bucket{{{labels},le="7.5"}} 1' in page
    output = f'{labels},gen_ai_token_type="output"'
    assert f"gen_ai_client_token_usage_sum{{{output}}} 2" in page


async def test_a_limit_of_tokens_that_the_model_does_not_know_holds() -> None:
    async with site_of() as site:
        body = json.dumps({**CHAT, "max_tokens": 2}).encode()
        call = asyncio.ensure_future(ask(site, "POST", "/v1/chat/completions", body))
        held = await site.scheduler.next_held()
        say(site, held, "a", "b", "c")
        response = await call
        assert await asyncio.wait_for(site.scheduler.cancelled.get(), LIMIT_S) == held.id
    document = json.loads(response.body)
    assert document["choices"][0]["message"]["content"] == "ab"
    assert document["choices"][0]["finish_reason"] == "length"
    assert document["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_leaves_stops_all_its_texts(streams: bool) -> None:
    async with site_of() as site:
        asked = {**CHAT, "n": 3, "stream": streams}
        reader, writer = await opened(site, "/v1/chat/completions", asked)
        held = [await site.scheduler.next_held() for _ in range(3)]
        if streams:
            say(site, held[0], "a")
            await read_until(reader, b'"a"')
        writer.transport.abort()
        cancelled = {await asyncio.wait_for(site.scheduler.cancelled.get(), LIMIT_S) for _ in held}
        assert cancelled == {request.id for request in held}
        pending = site.service._upstream.pending
        await until(lambda: not pending.requests)


async def test_a_client_that_does_not_read_pauses_the_model() -> None:
    async with site_of() as site:
        reader, writer = await opened(site, "/v1/chat/completions", {**STREAMED, "n": TEXTS})
        held = [await site.scheduler.next_held() for _ in range(TEXTS)]
        rounds = 0
        while site.scheduler.flows.empty():
            for request in held:
                say(site, request, "x" * 10_000)
            rounds += 1
            await asyncio.sleep(0)
        flows = {await asyncio.wait_for(site.scheduler.flows.get(), LIMIT_S) for _ in held}
        assert flows == {(request.id, True) for request in held}
        got = b""
        while got.count(b'"xxx') < rounds * TEXTS:
            got += await asyncio.wait_for(reader.read(1 << 20), LIMIT_S)
        flows = {await asyncio.wait_for(site.scheduler.flows.get(), LIMIT_S) for _ in held}
        assert flows == {(request.id, False) for request in held}
        writer.close()


@pytest.mark.parametrize(
    ("target", "document", "event"),
    [
        (
            "/v1/chat/completions",
            STREAMED,
            b'"type":"server_error","param":null,"code":"service_unavailable"}}\n\ndata: [DONE]',
        ),
        (
            "/v1/completions",
            {"model": "hold", "prompt": "hi", "stream": True},
            b'data: {"error":{"message":"it broke",',
        ),
        (
            "/v1/responses",
            {"model": "hold", "input": "hi", "stream": True},
            b"event: response.failed\n",
        ),
        (
            "/v1/messages",
            {**STREAMED, "max_tokens": 9},
            b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",',
        ),
    ],
)
async def test_an_error_is_a_response_before_the_stream_and_an_event_within(
    target: str, document: dict[str, Any], event: bytes
) -> None:
    status = ErrorStatus(Unavailable.code, "it broke")
    async with site_of() as site:
        for begins in (True, False):
            reader, writer = await opened(site, target, document)
            held = await site.scheduler.next_held()
            if begins:
                say(site, held, "a")
            site.scheduler.link.send(InferResponse(held.id, error=status))
            got = await read_until(reader, b"0\r\n\r\n" if begins else b"it broke")
            writer.close()
            assert got.startswith(b"HTTP/1.1 200" if begins else b"HTTP/1.1 503")
            assert (event in got) == begins
        # The text had begun, so it was not repeated.
        assert len(site.scheduler.received) == 2


async def test_the_first_error_stops_the_other_texts() -> None:
    async with site_of() as site:
        body = json.dumps({**CHAT, "n": 3}).encode()
        call = asyncio.ensure_future(ask(site, "POST", "/v1/chat/completions", body))
        first, *others = [await site.scheduler.next_held() for _ in range(3)]
        site.scheduler.link.send(
            InferResponse(first.id, error=ErrorStatus(Unavailable.code, "no", retry_after_ms=2000))
        )
        response = await call
        cancelled = {await asyncio.wait_for(site.scheduler.cancelled.get(), 5) for _ in others}
    assert response.status == 503
    assert b"\r\nRetry-After: " in response.head
    assert cancelled == {request.id for request in others}


async def test_a_template_that_loops_is_stopped_and_harms_nobody() -> None:
    loops = "{% for a in messages * 9999 %}{% for b in messages * 9999 %}{% endfor %}{% endfor %}"
    async with site_of(described(loops)) as site:
        body = json.dumps(CHAT).encode()
        call = asyncio.ensure_future(ask(site, "POST", "/v1/chat/completions", body))
        while not call.done():
            # Others are served meanwhile.
            assert (await ask(site, "GET", "/v2/health/live")).status == 200
        response = await call
    assert response.status == 400
    assert "too many steps" in json.loads(response.body)["error"]["message"]


async def test_a_call_of_a_tool_is_cut_out_of_a_stream() -> None:
    async with site_of(described(tool_parser="hermes")) as site:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"maximum": 10**40}}}
        asked = {**STREAMED, "tools": [tool]}
        reader, writer = await opened(site, "/v1/chat/completions", asked)
        held = await site.scheduler.next_held()
        say(site, held, "So", "<tool_", 'call>{"name": "f"', "}</tool_call>", last=True)
        got = await read_until(reader, b"0\r\n\r\n")
        writer.close()
    assert b"tool_call>" not in got
    assert b'"function":{"name":"f","arguments":"{}"}' in got
    assert b'"finish_reason":"tool_calls"' in got


async def test_anthropics_client_sends_its_key_in_a_header_of_its_own(tmp_path: Path) -> None:
    key = make_key()
    config = tmp_path / "auth.toml"
    config.write_text(key_entry("web", key, "inference"))
    asked: Any = {
        "model": "hold",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    }
    async with site_of(auth_config=str(config)) as site:
        url = f"http://{site.http}"
        async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
            message = asyncio.ensure_future(client.messages.create(**asked))
            say(site, await site.scheduler.next_held(), "hello", last=True)
            (block,) = (await message).content
        assert block.type == "text"
        assert block.text == "hello"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await client.messages.create(**asked)
    body: Any = refused.value.body
    assert body["error"]["type"] == "authentication_error"
