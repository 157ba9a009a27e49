"""Answers in pieces by raw bytes over real sockets: framing, order, clients that do not read."""

from __future__ import annotations

import asyncio

import pytest

from nereid.services.gateway.http.server.limits import HttpLimits
from tests.support.gateway.http_connection_site import WAIT_S, read_response, request, rest, site

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = b"text/event-stream"


async def until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    return await asyncio.wait_for(reader.readuntil(end), WAIT_S)


async def test_each_piece_is_a_chunk_that_leaves_at_once() -> None:
    async with site() as there:
        reader, writer = await there.connect()
        writer.write(request("/stream"))
        call = await there.next_call()
        call.begin(200, STREAM)
        assert await until(reader, b"\r\n\r\n") == HEAD
        for piece in (b"one", b"", b"x" * 70_000):
            call.send(piece)
            if piece:
                framed = b"%x\r\n%b\r\n" % (len(piece), piece)
                assert await asyncio.wait_for(reader.readexactly(len(framed)), WAIT_S) == framed
        call.finish()
        call.finish()
        call.send(b"too late")
        assert await until(reader, b"\r\n\r\n") == b"0\r\n\r\n"
        # The connection goes on.
        writer.write(request())
        assert (await read_response(reader))[0] == 200
        assert there.server.statuses == {b"200": 2}


async def test_without_chunks_the_end_of_the_connection_is_the_end() -> None:
    async with site() as there:
        reader, writer = await there.connect()
        writer.write(b"POST /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        call = await there.next_call()
        call.begin(400, STREAM, b"X-Extra: 1\r\n")
        call.send(b"one")
        call.send(b"two")
        call.finish()
        assert await rest(reader) == (
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/event-stream\r\nX-Extra: 1\r\n"
            b"Connection: close\r\n\r\nonetwo"
        )


async def test_pieces_wait_for_earlier_responses() -> None:
    async with site() as there:
        reader, writer = await there.connect()
        writer.write(request("/1") + request("/2") + request("/3"))
        first, second, third = [await there.next_call() for _ in range(3)]
        third.begin(200, STREAM)
        second.begin(200, STREAM)
        second.send(b"two")
        third.send(b"three")
        third.finish()
        first.respond(200, (b"one",))
        assert (await read_response(reader))[2] == b"one"
        assert await until(reader, b"two\r\n") == HEAD + b"3\r\ntwo\r\n"
        second.finish()
        whole = b"0\r\n\r\n" + HEAD + b"5\r\nthree\r\n0\r\n\r\n"
        assert await asyncio.wait_for(reader.readexactly(len(whole)), WAIT_S) == whole


async def test_another_response_ends_one_that_was_begun() -> None:
    async with site() as there:
        reader, writer = await there.connect()
        writer.write(request("/stream"))
        call = await there.next_call()
        call.begin(200, STREAM)
        call.fail(500, "went wrong")
        assert await until(reader, b"0\r\n\r\n") == HEAD + b"0\r\n\r\n"


async def test_a_client_that_goes_amid_the_pieces_cancels() -> None:
    async with site() as there:
        reader, writer = await there.connect()
        writer.write(request("/stream"))
        call = await there.next_call()
        call.begin(200, STREAM)
        await until(reader, b"\r\n\r\n")
        writer.close()
        # What it left half-closed is told from gone by writing to it.
        while there.cancelled.empty():
            call.send(b"more")
            await asyncio.sleep(0)
        assert there.cancelled.get_nowait() is call
        call.send(b"nobody")
        call.finish()


@pytest.mark.parametrize("behind", [False, True])
async def test_a_client_that_does_not_read_is_cut_off(behind: bool) -> None:
    """Whether its own socket is full, or its answer waits behind another one's."""
    limits = HttpLimits(max_body_bytes=1000, max_unsent_bytes=100_000)
    async with site(limits) as there:
        _, writer = await there.connect()
        writer.write(request("/1") + request("/2"))
        first, second = await there.next_call(), await there.next_call()
        call = second if behind else first
        call.begin(200, STREAM)
        sent = 0
        while there.cancelled.empty():
            call.send(bytes(50_000))
            sent += 50_000
            # The system's own buffers take some megabytes.
            assert sent < 100_000_000
            await asyncio.sleep(0)
        assert {await there.cancelled.get(), await there.cancelled.get()} == {first, second}
        reader, writer = await there.connect()
        writer.write(request())
        assert (await read_response(reader))[0] == 200


async def test_one_piece_may_be_of_any_size() -> None:
    limits = HttpLimits(max_body_bytes=1000, max_unsent_bytes=1000)
    async with site(limits) as there:
        reader, writer = await there.connect()
        writer.write(request("/1") + request("/2"))
        first, second = await there.next_call(), await there.next_call()
        second.begin(200, STREAM)
        second.send(bytes(5_000_000))
        second.finish()
        first.respond(200, ())
        await read_response(reader)
        await until(reader, b"\r\n\r\n")
        body = await asyncio.wait_for(reader.readexactly(5_000_000 + 8 + 2 + 5), WAIT_S)
        assert body.endswith(b"\r\n0\r\n\r\n")
