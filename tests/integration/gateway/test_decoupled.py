"""Requests with any number of responses, through the gateway's real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse
from nereid.pb import kserve_pb2
from tests.support.gateway.gateway_http import ask, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.gateway.gateway_streams import end, opened, read_replies, request, write

FINAL = "triton_final_response"
BODY = b'{"INPUT0":[1,2],"id":"7"}'
EVENT = b'{"OUTPUT0":[1.0,2.0],"id":"7","model_name":"hold","model_version":"1"}'
LIMIT_S = 10


def say(site: GatewaySite, held: InferRequest, *words: str, size_bytes: int = 0) -> None:
    """Respond to a request: "a" a response, "f" a failure, "-" none; with a dot: the last."""
    for word in words:
        if word[0] == "-":
            response = InferResponse(held.id)
        elif word[0] == "f":
            head = kserve_pb2.ModelInferResponse(model_name="hold").SerializeToString()
            response = InferResponse(
                held.id, head, error=ErrorStatus(13, "it failed", accepted=True)
            )
        else:
            response = site.scheduler.echo(held)
            if size_bytes:
                response.payloads = [bytes(size_bytes)]
        response.more = not word.endswith(".")
        site.scheduler.link.send(response)


async def say_until_paused(site: GatewaySite, held: InferRequest, size_bytes: int) -> int:
    """Send responses of that size until the gateway pauses the request; how many it took."""
    count = 0
    while site.scheduler.flows.empty():
        say(site, held, "a", size_bytes=size_bytes)
        count += 1
        await asyncio.sleep(0)
    assert site.scheduler.flows.get_nowait() == (held.id, True)
    return count


async def finals(call: Any, count: int) -> list[tuple[str, bool, int]]:
    """Of each reply its error or id, whether it is the last, and its outputs' count."""
    replies = [await call.read() for _ in range(count)]
    return [
        (
            each.error_message or each.infer_response.id,
            each.infer_response.parameters[FINAL].bool_param,
            len(each.infer_response.outputs),
        )
        for each in replies
    ]


@pytest.mark.parametrize(
    ("words", "replies"),
    [
        ("a a -.", [("1", False, 1), ("1", False, 1), ("1", True, 0)]),
        ("- a.", [("1", True, 1)]),
        ("a f.", [("1", False, 1), ("it failed", True, 0)]),
    ],
)
async def test_replies_on_a_stream(
    site: GatewaySite, channel: grpc.aio.Channel, words: str, replies: list[tuple[str, bool, int]]
) -> None:
    """Further ones, and those without an empty last reply, are recorded rows (python/streams)."""
    call = opened(channel)
    await write(call, request("hold", "1", wants_empty_final=True))
    held = await site.scheduler.next_held()
    assert held.accepts_many
    say(site, held, *words.split())
    assert await finals(call, len(replies)) == replies
    await call.done_writing()
    assert await end(call) == ("OK", "")


async def test_replies_of_decoupled_models_do_not_wait_for_others(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    call = opened(channel)
    await write(call, *(request("hold", str(number)) for number in range(5)))
    await call.done_writing()
    ordinary, first, second, third, last = [await site.scheduler.next_held() for _ in range(5)]
    say(site, second, "a")
    say(site, first, "a", "a.")
    say(site, last, "a.")
    say(site, third, "-", "f.")
    say(site, ordinary, "a.")
    say(site, second, "a", "-.")
    assert [(error or name) for error, name, _ in await read_replies(call, 7)] == [
        *("2", "1", "1", "it failed", "0"),
        # Not decoupled: behind all that came before it.
        *("2", "4"),
    ]
    assert await end(call) == ("OK", "")


async def test_a_failure_in_the_middle_as_the_status_of_the_call(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    call = opened(channel, ("triton_grpc_error", "true"))
    await write(call, request("hold", "1"), request("hold", "2"))
    first, second = await site.scheduler.next_held(), await site.scheduler.next_held()
    say(site, second, "a")
    say(site, first, "a", "f")
    assert [each[1] for each in await read_replies(call, 2)] == ["2", "1"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert (caught.value.code().name, caught.value.details()) == ("INTERNAL", "it failed")
    gone = {await asyncio.wait_for(site.scheduler.cancelled.get(), LIMIT_S) for _ in range(2)}
    assert gone == {first.id, second.id}


async def test_a_model_waits_for_a_client_that_does_not_read(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    call = opened(channel, timeout_s=60)
    await write(call, request("hold", "1"))
    held = await site.scheduler.next_held()
    count = await say_until_paused(site, held, size_bytes=1 << 18)
    assert count < 200
    say(site, held, "a", "a")
    # It is paused once, and may go on as soon as the client has read.
    assert len(await read_replies(call, count + 2)) == count + 2
    assert await asyncio.wait_for(site.scheduler.flows.get(), LIMIT_S) == (held.id, False)
    assert site.scheduler.flows.empty()
    say(site, held, "-.")
    await call.done_writing()
    assert await end(call) == ("OK", "")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ("a -.", 200, b'"OUTPUT0"'),
        ("-.", 200, b"exactly 1 response"),
        ("a f a -.", 200, b"exactly 1 response"),
        ("f.", 400, b"it failed"),
    ],
)
async def test_generate(site: GatewaySite, words: str, status: int, text: bytes) -> None:
    asked = asyncio.ensure_future(ask(site, "POST", "/v2/models/hold/generate", BODY))
    say(site, await site.scheduler.next_held(), *words.split())
    got = await asked
    assert (got.status, text in got.body) == (status, True)


async def open_events(
    site: GatewaySite, count: int = 1
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(site)
    head = b"POST /v2/models/hold/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    writer.write((head % len(BODY) + BODY) * count)
    return reader, writer


async def read_piece(reader: asyncio.StreamReader) -> bytes:
    size = int(await asyncio.wait_for(reader.readuntil(b"\r\n"), LIMIT_S), 16)
    return (await asyncio.wait_for(reader.readexactly(size + 2), LIMIT_S))[:-2]


FAILURE = b'{"error":"it failed"}'


@pytest.mark.parametrize(
    ("words", "status", "events"),
    [
        ("a a a.", b"200 OK", [EVENT] * 3),
        ("-.", b"200 OK", []),
        ("a f a -.", b"200 OK", [EVENT, FAILURE, EVENT]),
        ("f a.", b"400 Bad Request", [FAILURE, EVENT]),
    ],
)
async def test_events(site: GatewaySite, words: str, status: bytes, events: list[bytes]) -> None:
    reader, writer = await open_events(site)
    held = await site.scheduler.next_held()
    assert held.accepts_many
    for index, word in enumerate(words.split()):
        say(site, held, word)
        if index == 0:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
            assert head.startswith(b"HTTP/1.1 %b\r\n" % status)
            assert b"text/event-stream" in head
        # Each comes as soon as it is there.
        if index < len(events):
            assert await read_piece(reader) == b"data: %b\n\n" % events[index]
    assert await read_piece(reader) == b""
    writer.close()


async def test_a_half_closed_client_of_events_gets_them_all(site: GatewaySite) -> None:
    reader, writer = await open_events(site)
    held = await site.scheduler.next_held()
    say(site, held, "a")
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    assert (await read_piece(reader)).startswith(b"data: ")
    writer.write_eof()
    # A comment, as events have them, finds out whether it is there.
    assert await read_piece(reader) == b":\n\n"
    say(site, held, "a.")
    assert (await read_piece(reader)).startswith(b"data: ")
    assert await read_piece(reader) == b""
    writer.close()


async def test_a_model_waits_for_a_client_that_does_not_read_its_events(site: GatewaySite) -> None:
    reader, writer = await open_events(site)
    held = await site.scheduler.next_held()
    count = await say_until_paused(site, held, size_bytes=1 << 16)
    assert count < 500
    say(site, held, "a")
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    for _ in range(count + 1):
        assert (await read_piece(reader)).startswith(b"data: ")
    assert await asyncio.wait_for(site.scheduler.flows.get(), LIMIT_S) == (held.id, False)
    assert site.scheduler.flows.empty()
    say(site, held, "-.")
    assert await read_piece(reader) == b""
    writer.close()


async def test_events_that_wait_behind_others_stop_their_model(site: GatewaySite) -> None:
    reader, writer = await open_events(site, 2)
    first, second = await site.scheduler.next_held(), await site.scheduler.next_held()
    say(site, second, *"aaa", size_bytes=1 << 16)
    assert await asyncio.wait_for(site.scheduler.flows.get(), LIMIT_S) == (second.id, True)
    say(site, first, "-.")
    assert await asyncio.wait_for(site.scheduler.flows.get(), LIMIT_S) == (second.id, False)
    say(site, second, "-.")
    for count in (0, 3):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        for _ in range(count):
            assert (await read_piece(reader)).startswith(b"data: ")
        assert await read_piece(reader) == b""
    writer.close()


async def test_a_request_that_is_not_accepted_begins_no_stream() -> None:
    async with gateway_site(max_pending_requests=1) as site:
        reader, writer = await open_events(site, 2)
        held = await site.scheduler.next_held()
        response = await ask(site, "POST", "/v2/models/hold/generate_stream", BODY)
        assert response[:2] == (503, "application/json")
        assert b"Exceeds maximum queue size" in response.body
        site.scheduler.link.send(site.scheduler.echo(held))
        assert await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), LIMIT_S)
        writer.close()
