"""Streamed responses by raw bytes over real sockets: framing, order, clients that do not read."""

from __future__ import annotations

import asyncio

import pytest

from nereid_gateway.server.call import HttpCall, error_body
from nereid_gateway.server.limits import HttpLimits
from tests.support.gateway.http_site import (
    WAIT_S,
    HttpSite,
    http_site,
    read_response,
    request,
    rest,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = b"text/event-stream"


def test_an_error_body_can_hold_any_text() -> None:
    assert error_body('a "quoted" \udcff') == b'{"error":"a \\"quoted\\" ?"}'


def test_last_lines_are_made_as_the_response_is() -> None:
    call = HttpCall(lambda: None)
    call.last_lines = lambda: b"Server-Timing: total\r\n"
    call.respond(200, (b"body",), STREAM)
    head, body = call.unwritten
    assert head.endswith(b"Content-Length: 4\r\nServer-Timing: total\r\n\r\n")
    assert body == b"body"


@pytest.mark.parametrize(
    ("http_1_0", "end"), [(False, b"0\r\nServer-Timing: total\r\n\r\n"), (True, b"")]
)
def test_last_lines_of_a_stream_are_its_trailers(http_1_0: bool, end: bytes) -> None:
    """HTTP/1.0 has no chunks, and so none."""
    call = HttpCall(lambda: None)
    call.http_1_0 = http_1_0
    call.last_lines = lambda: b"Server-Timing: total\r\n"
    call.begin_stream(200, STREAM)
    call.end_stream()
    assert call.unwritten[-1] == end
    assert b"Server-Timing" not in call.unwritten[0]


async def until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    return await asyncio.wait_for(reader.readuntil(end), WAIT_S)


async def test_each_chunk_is_sent_at_once(site: HttpSite) -> None:
    reader, writer = await site.connect()
    writer.write(request("/stream"))
    call = await site.next_call()
    call.begin_stream(200, STREAM)
    assert await until(reader, b"\r\n\r\n") == HEAD
    for data in (b"one", b"", b"x" * 70_000):
        call.send_chunk(data)
        if data:
            framed = b"%x\r\n%b\r\n" % (len(data), data)
            assert await asyncio.wait_for(reader.readexactly(len(framed)), WAIT_S) == framed
    call.end_stream()
    call.end_stream()
    call.send_chunk(b"too late")
    assert await until(reader, b"\r\n\r\n") == b"0\r\n\r\n"
    # The connection goes on.
    writer.write(request())
    assert (await read_response(reader))[0] == 200
    assert site.server.statuses == {b"200": 2}


async def test_without_chunks_the_end_of_the_connection_is_the_end(site: HttpSite) -> None:
    reader = await site.send(b"POST /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    call = await site.next_call()
    call.begin_stream(400, STREAM, b"X-Extra: 1\r\n")
    call.send_chunk(b"one")
    call.send_chunk(b"two")
    call.end_stream()
    assert await rest(reader) == (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/event-stream\r\nX-Extra: 1\r\n"
        b"Connection: close\r\n\r\nonetwo"
    )


async def test_chunks_wait_for_earlier_responses(site: HttpSite) -> None:
    reader = await site.send(request("/1") + request("/2") + request("/3"))
    first, second, third = [await site.next_call() for _ in range(3)]
    third.begin_stream(200, STREAM)
    second.begin_stream(200, STREAM)
    second.send_chunk(b"two")
    third.send_chunk(b"three")
    third.end_stream()
    first.respond(200, (b"one",))
    assert (await read_response(reader))[2] == b"one"
    assert await until(reader, b"two\r\n") == HEAD + b"3\r\ntwo\r\n"
    second.end_stream()
    whole = b"0\r\n\r\n" + HEAD + b"5\r\nthree\r\n0\r\n\r\n"
    assert await asyncio.wait_for(reader.readexactly(len(whole)), WAIT_S) == whole


async def test_another_response_ends_a_stream(site: HttpSite) -> None:
    reader = await site.send(request("/stream"))
    call = await site.next_call()
    call.begin_stream(200, STREAM)
    call.fail(500, "went wrong")
    assert await until(reader, b"0\r\n\r\n") == HEAD + b"0\r\n\r\n"


async def test_a_client_that_disconnects_amid_a_stream_cancels_it(site: HttpSite) -> None:
    reader, writer = await site.connect()
    writer.write(request("/stream"))
    call = await site.next_call()
    call.begin_stream(200, STREAM)
    await until(reader, b"\r\n\r\n")
    writer.close()
    # Writing tells a closed connection from a half-closed one.
    while site.cancelled.empty():
        call.send_chunk(b"more")
        await asyncio.sleep(0)
    assert site.cancelled.get_nowait() is call
    call.send_chunk(b"nobody")
    call.end_stream()


@pytest.mark.parametrize("behind", [False, True])
async def test_a_client_that_does_not_read_is_disconnected(behind: bool) -> None:
    """Whether its own socket is full, or its response waits behind another one."""
    limits = HttpLimits(max_body_bytes=1000, max_unsent_bytes=100_000)
    async with http_site(limits) as site:
        _, writer = await site.connect()
        writer.write(request("/1") + request("/2"))
        first, second = await site.next_call(), await site.next_call()
        call = second if behind else first
        call.begin_stream(200, STREAM)
        sent = 0
        while site.cancelled.empty():
            call.send_chunk(bytes(50_000))
            sent += 50_000
            # The system's own buffers take some megabytes.
            assert sent < 100_000_000
            await asyncio.sleep(0)
        assert {await site.cancelled.get(), await site.cancelled.get()} == {first, second}
        assert (await read_response(await site.send(request())))[0] == 200


async def test_one_chunk_may_be_of_any_size() -> None:
    limits = HttpLimits(max_body_bytes=1000, max_unsent_bytes=1000)
    async with http_site(limits) as site:
        reader = await site.send(request("/1") + request("/2"))
        first, second = await site.next_call(), await site.next_call()
        second.begin_stream(200, STREAM)
        second.send_chunk(bytes(5_000_000))
        second.end_stream()
        first.respond(200, ())
        await read_response(reader)
        await until(reader, b"\r\n\r\n")
        body = await asyncio.wait_for(reader.readexactly(5_000_000 + 8 + 2 + 5), WAIT_S)
        assert body.endswith(b"\r\n0\r\n\r\n")
