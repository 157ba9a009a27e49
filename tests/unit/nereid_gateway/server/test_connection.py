"""HTTP/1.1 by raw bytes over real sockets: order, limits, timeouts, draining. What a message may
look like is test_rfc9112.py's.
"""

from __future__ import annotations

import asyncio
import socket

import pytest

from nereid_gateway.server.connection import HttpConnection
from nereid_gateway.server.limits import HttpLimits
from tests.support.gateway.http_site import (
    WAIT_S,
    HttpSite,
    http_site,
    read_response,
    request,
    rest,
)
from tests.support.waiting import until

CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_keep_alive_and_bodies_in_pieces(site: HttpSite) -> None:
    reader, writer = await site.connect()
    for body in (b"", b"abc", b"x" * 999):
        data = request("/echo", body)
        for start in range(0, len(data), 50):
            writer.write(data[start : start + 50])
            await writer.drain()
        assert await read_response(reader) == (
            200,
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (len(body) + 5),
            b"POST " + body,
        )


async def test_pipelined_responses_keep_the_order_of_their_requests(site: HttpSite) -> None:
    reader = await site.send(request("/1") + request("/2") + request("/3") + request("/echo", b"4"))
    calls = [await site.next_call() for _ in range(3)]
    for call in reversed(calls):
        call.respond(200, (call.target,))
    for expected in (b"/1", b"/2", b"/3", b"POST 4"):
        assert (await read_response(reader))[2] == expected


async def test_max_pipelined_requests_are_in_flight(site: HttpSite) -> None:
    reader = await site.send(b"".join(request(f"/{number}") for number in range(10)))
    first = [await site.next_call() for _ in range(3)]
    # A second connection is served meanwhile; nothing more of the first has begun.
    assert (await read_response(await site.send(request())))[0] == 200
    assert site.calls.empty()
    for number in range(10):
        call = first.pop(0) if first else await site.next_call()
        assert call.target == b"/%d" % number
        call.respond(200, (call.target,))
        assert (await read_response(reader))[2] == call.target


async def _send_all(writer: asyncio.StreamWriter, data: bytes, count: int) -> None:
    for _ in range(count):
        writer.write(data)
        await writer.drain()


async def _paused(site: HttpSite) -> HttpConnection:
    """The one connection, once it is not read from."""
    await until(lambda: [not each._reading for each in site.server._connections] == [True])
    return next(iter(site.server._connections))


async def test_reading_pauses_while_too_many_requests_are_in_flight() -> None:
    limits = HttpLimits(max_body_bytes=1 << 20, max_pipelined=1)
    async with http_site(limits) as site:
        reader, writer = await site.connect()
        # 30 MB do not fit into the sockets' buffers.
        sent = asyncio.ensure_future(_send_all(writer, request("/wait", b"x" * 500_000), 60))
        await _paused(site)
        assert not sent.done()
        for _ in range(60):
            call = await site.next_call()
            assert len(call.body) == 500_000
            call.respond(200, (b"ok",))
            assert (await read_response(reader))[0] == 200
        await sent


async def test_a_client_that_reads_no_responses_is_not_read_from_and_does_not_time_out() -> None:
    async with http_site(HttpLimits(1 << 20, max_pipelined=1000)) as site:
        reader, writer = await site.connect()
        sent = asyncio.ensure_future(_send_all(writer, request("/echo", b"y" * 500_000), 60))
        connection = await _paused(site)
        # In the middle of a request, which the client cannot finish.
        await until(lambda: connection._reader.call or connection._reader.deferred)
        assert not sent.done()
        connection.close_if_silent(asyncio.get_running_loop().time() + 1000)
        for _ in range(60):
            assert len((await read_response(reader))[2]) == 500_005
        await sent


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 400, b"exceeds the limit of 1000"),
        (CHUNKED + b"400\r\n" + b"x" * 1024, 400, b"exceeds the limit of 1000 bytes"),
        (CHUNKED + b"1\r\nx\r\n" * 7, 400, b"exceeds maximum of 5 non-empty chunks"),
        (CHUNKED + b"1\r\nx\r\n" * 6 + b"0\r\n\r\n", 400, b"of 5 non-empty chunks. Send"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 3000, 431, b"request headers exceed 2000 bytes"),
        (b"GET /" + b"x" * 3000, 431, b"request headers exceed 2000 bytes"),
    ],
)
async def test_an_invalid_request_gets_an_error_and_the_connection_closes(
    site: HttpSite, data: bytes, status: int, text: bytes
) -> None:
    reader = await site.send(request() + data)
    assert (await read_response(reader))[0] == 200
    got, head, body = await read_response(reader)
    assert got == status
    assert b"Connection: close" in head
    assert body.startswith(b'{"error":"')
    assert text in body
    assert await rest(reader) == b""


async def test_a_rejection_waits_for_the_responses_before_it(site: HttpSite) -> None:
    reader = await site.send(
        b"".join(request(f"/{number}") for number in range(5)) + b"zzz\r\n\r\n"
    )
    for number in range(5):
        (await site.next_call()).respond(200, (b"%d" % number,))
        assert (await read_response(reader))[2] == b"%d" % number
    assert (await read_response(reader))[0] == 400


async def test_the_response_to_a_too_large_body_reaches_a_client_that_is_still_sending(
    site: HttpSite,
) -> None:
    reader, writer = await site.connect()
    writer.write(b"POST / HTTP/1.1\r\nContent-Length: 50000000\r\n\r\n")
    for _ in range(100):
        writer.write(b"x" * 50000)
        await writer.drain()
    assert (await read_response(reader))[0] == 400


async def test_a_crash_of_the_dispatcher_is_an_internal_error_of_one_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with http_site() as site:
        reader = await site.send(request("/crash") + request())
        status, _, body = await read_response(reader)
        assert status == 500
        assert b"internal error" in body
        assert (await read_response(reader))[0] == 200
    assert "ZeroDivisionError" in caplog.text


async def test_expect_continue(site: HttpSite) -> None:
    reader, writer = await site.connect()
    head = request("/echo", b"12345", "Expect: 100-continue")[:-5]
    writer.write(request("/first") + head)
    first = await site.next_call()
    first.respond(200, (b"1",))
    assert (await read_response(reader))[2] == b"1"
    assert await read_response(reader) == (100, b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    writer.write(b"12345")
    assert (await read_response(reader))[2] == b"POST 12345"
    # A body that came with its head is not asked for.
    writer.write(head + b"67890")
    assert (await read_response(reader))[2] == b"POST 67890"


async def test_a_lost_connection_cancels_what_is_in_flight(site: HttpSite) -> None:
    _, writer = await site.connect()
    writer.write(request("/1") + request("/2"))
    calls = [await site.next_call() for _ in range(2)]
    # A linger of zero makes the close a reset.
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.close()
    cancelled = [await asyncio.wait_for(site.cancelled.get(), WAIT_S) for _ in range(2)]
    assert cancelled == calls
    assert all(call.done for call in calls)
    calls[0].respond(200, (b"too late",))


async def test_a_closed_connection_is_detected_by_probing(site: HttpSite) -> None:
    _, writer = await site.connect()
    writer.write(request("/gone"))
    call = await site.next_call()
    writer.close()
    assert await asyncio.wait_for(site.cancelled.get(), WAIT_S) is call


async def test_half_closed_connections_get_their_responses(site: HttpSite) -> None:
    reader, writer = await site.connect()
    writer.write(request("/1") + request("/echo", b"2"))
    writer.write_eof()
    call = await site.next_call()
    # Long enough for the probe, which a client must skip.
    interim = await read_response(reader)
    assert interim[0] == 102
    call.respond(200, (b"1",))
    assert (await read_response(reader))[2] == b"1"
    assert (await read_response(reader))[2] == b"POST 2"
    assert await rest(reader) == b""
    assert site.cancelled.empty()


async def test_half_closed_in_the_middle_of_a_request(site: HttpSite) -> None:
    reader, writer = await site.connect()
    writer.write(request("/echo", b"whole") + request("/echo", b"part")[:-2])
    writer.write_eof()
    assert (await read_response(reader))[2] == b"POST whole"
    assert await rest(reader) == b""


@pytest.mark.parametrize("data", [b"", b"POST / HT", request("/echo", b"abc")[:-1]])
async def test_silent_connections_are_closed(data: bytes) -> None:
    limits = HttpLimits(
        100,
        header_timeout_s=0.0,
        body_timeout_s=0.0,
        idle_timeout_s=0.0,
        sweep_interval_s=0.02,
    )
    async with http_site(limits) as site:
        reader = await site.send(data)
        if data:
            assert (await read_response(reader))[0] == 408
        assert await rest(reader) == b""


async def test_a_drain_lets_every_response_close_its_connection(site: HttpSite) -> None:
    reader, writer = await site.connect()
    idle_reader, idle_writer = await site.connect()
    idle_writer.write(request())
    assert b"close" not in (await read_response(idle_reader))[1]
    writer.write(request("/1"))
    call = await site.next_call()
    site.server.begin_drain()
    call.respond(200, (b"1",))
    assert b"Connection: close" in (await read_response(reader))[1]
    assert await rest(reader) == b""
    # New ones are served as well, and closed.
    for fresh_reader, fresh_writer in ((idle_reader, idle_writer), await site.connect()):
        fresh_writer.write(request())
        assert b"Connection: close" in (await read_response(fresh_reader))[1]
        assert await rest(fresh_reader) == b""


async def test_stopping_waits_for_responses_and_accepts_nothing_new(site: HttpSite) -> None:
    reader, writer = await site.connect()
    idle_reader, _ = await site.connect()
    writer.write(request("/1"))
    call = await site.next_call()
    site.server.begin_drain()
    site.server.stop_accepting()
    assert await rest(idle_reader) == b""
    with pytest.raises(OSError):
        await asyncio.open_connection(*site.address)
    closed = asyncio.ensure_future(site.server.wait_closed(WAIT_S))
    call.respond(200, (b"1",))
    assert (await read_response(reader))[2] == b"1"
    assert await rest(reader) == b""
    await closed


async def test_stopping_does_not_wait_for_ever(site: HttpSite) -> None:
    await site.send(request("/1"))
    await site.next_call()
    await site.server.wait_closed(0.01)
    await site.server.close()
    await asyncio.wait_for(site.cancelled.get(), WAIT_S)


async def test_only_the_first_response_counts(site: HttpSite) -> None:
    reader, writer = await site.connect()
    writer.write(request("/1"))
    call = await site.next_call()
    call.respond(200, (b"1",))
    call.fail(500, "too late")
    writer.write(request())
    assert (await read_response(reader))[2] == b"1"
    assert (await read_response(reader))[2] == b"POST "
