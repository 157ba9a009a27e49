"""What the proxy of `nereid adopt` makes of HTTP/1.1, beside a scripted old server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from nereid.comparison.rules import parse_rules
from nereid.comparison.tally import TallyOptions
from nereid_adopt.calls.traffic import SequenceStep, Side
from nereid_adopt.copies.process import CopyOptions
from nereid_adopt.proxy.held_bytes import NO_SPACE
from nereid_adopt.proxy.recorder import BROKEN_SEQUENCE
from nereid_adopt.running_proxy import Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_NOBODY = "127.0.0.1:1"


class OldServer:
    """Serves each connection by a script, and counts them."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.connections = 0
        self.disconnected = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._script(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            self.disconnected.set()
        finally:
            writer.close()


@asynccontextmanager
async def proxied(
    script: Script,
    max_copied_bytes: int = 1 << 20,
    max_held_bytes: int = 1 << 30,
    new_address: str = _NOBODY,
) -> AsyncIterator[tuple[OldServer, Proxy, Callable[[], Awaitable[Streams]]]]:
    """Run an old server and a proxy before it; the last value connects a client."""
    old = OldServer(script)
    server = await asyncio.start_server(old.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    addresses = address, new_address
    options = CopyOptions(addresses, addresses, parse_rules({}), TallyOptions(), 5)
    proxy = Proxy(
        options,
        max_queued_bytes=1 << 20,
        max_copied_bytes=max_copied_bytes,
        max_held_bytes=max_held_bytes,
    )
    http, _ = await proxy.open("127.0.0.1:0", "127.0.0.1:0")
    host, _, port = http.rpartition(":")
    clients: list[asyncio.StreamWriter] = []

    async def connect() -> Streams:
        streams = await asyncio.open_connection(host, int(port))
        clients.append(streams[1])
        return streams

    try:
        async with asyncio.timeout(30):
            yield old, proxy, connect
    finally:
        for client in clients:
            client.close()
        await proxy.close()
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"chunked" in head.lower():
        body = await reader.readuntil(b"0\r\n\r\n")
    else:
        _, found, rest = head.lower().partition(b"content-length: ")
        body = await reader.readexactly(int(rest.split(b"\r\n")[0])) if found else b""
    return head, body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to each request with its target and body."""
    while True:
        head, body = await read_request(reader)
        content = head.split(b" ")[1] + b" " + body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))


def post(target: bytes, body: bytes, more: bytes = b"") -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n"
    return head % (target, len(body), more) + body


async def read_response(reader: asyncio.StreamReader) -> bytes:
    """The body of one response."""
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))


async def test_pipelined_requests_get_their_responses_in_order() -> None:
    async with proxied(echo) as (old, _, connect):
        reader, writer = await connect()
        targets = [b"/%d" % number for number in range(40)]
        writer.write(b"".join(post(target, b"b") for target in targets))
        assert [await read_response(reader) for _ in targets] == [t + b" b" for t in targets]
        assert old.connections == 1


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with proxied(echo) as (_, _, connect):
        reader, writer = await connect()
        request = post(b"/v2/models/m/infer", b"body", b"Expect: 100-continue\r\n")
        writer.write(request[:-4])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(request[-4:])
        assert await read_response(reader) == b"/v2/models/m/infer body"


@pytest.mark.parametrize("max_copied_bytes", [1 << 20, 3])
async def test_chunked_requests_are_passed_on(max_copied_bytes: int) -> None:
    async with proxied(echo, max_copied_bytes) as (_, proxy, connect):
        reader, writer = await connect()
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"3\r\nabc\r\n")
        await writer.drain()
        writer.write(b"2\r\nde\r\n0\r\n\r\n")
        body = await read_response(reader)
        assert [piece for piece in body.split(b"\r\n") if piece.isalpha()] in (
            [b"abcde"],
            [b"abc", b"de"],
        )
        # The connection serves on.
        writer.write(post(b"/next", b""))
        assert await read_response(reader) == b"/next "
        assert (proxy.site.recorder.not_copied.total() == 1) is (max_copied_bytes == 3)


async def test_a_large_request_is_passed_on_as_it_arrives() -> None:
    async with proxied(echo, max_copied_bytes=1000) as (_, proxy, connect):
        reader, writer = await connect()
        body = bytes(8 << 20)
        writer.write(post(b"/v2/models/m/infer", body))
        assert await read_response(reader) == b"/v2/models/m/infer " + body
        assert proxy.site.recorder.not_copied["m", "the request is too large"] == 1


async def test_a_client_that_disconnects_cancels_its_request() -> None:
    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.set()
        await reader.readexactly(1)

    arrived = asyncio.Event()
    async with proxied(wait) as (old, _, connect):
        _, writer = await connect()
        writer.write(post(b"/v2/models/m/infer", b"b"))
        await arrived.wait()
        writer.transport.abort()
        await old.disconnected.wait()


async def test_an_idle_connection_that_the_server_closed_fails_nobody() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with proxied(once) as (old, _, connect):
        reader, writer = await connect()
        for number in range(1, 4):
            writer.write(post(b"/v2/models/m/infer", b"b"))
            assert await read_response(reader) == b"ok"
            assert old.connections == number


async def test_heads_have_no_body() -> None:
    async def head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")

    async with proxied(head) as (old, _, connect):
        reader, writer = await connect()
        for _ in range(3):
            writer.write(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"Content-Length: 5" in await reader.readuntil(b"\r\n\r\n")
        assert old.connections == 1


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    response = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(1000)

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(response)

    async with proxied(close) as (_, proxy, connect):
        reader, writer = await connect()
        writer.write(post(b"/v2/models/m/infer", b"b"))
        assert await reader.read() == response
        assert proxy.site.recorder.failures == 0


async def test_a_cut_off_response_is_cut_off() -> None:
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(response)

    async with proxied(cut) as (_, proxy, connect):
        reader, writer = await connect()
        writer.write(post(b"/v2/models/m/infer", b"b"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await read_response(reader)
        assert proxy.site.recorder.failures == 1


async def test_a_server_that_is_gone_is_a_bad_gateway() -> None:
    async def drop(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with proxied(drop) as (_, proxy, connect):
        reader, writer = await connect()
        for _ in range(2):
            writer.write(post(b"/v2/models/m/infer", b"b"))
            assert b"connection lost" in await read_response(reader)
        assert proxy.site.recorder.failures == 2


async def test_a_client_that_does_not_read_stops_the_server() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        while True:
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            await asyncio.wait_for(writer.drain(), 1)

    stalled = asyncio.Event()

    async def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await flood(reader, writer)
        except TimeoutError:
            stalled.set()

    async with proxied(watched) as (_, _, connect):
        reader, writer = await connect()
        writer.write(post(b"/v2/models/m/infer", b"b"))
        await stalled.wait()
        assert sent < 32 << 20
        await reader.read(1)


async def test_one_that_cannot_be_parsed_is_the_old_server_s_to_refuse() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1000))
        writer.write(b"HTTP/1.1 400 mine\r\n\r\n")

    received: list[bytes] = []
    async with proxied(refuse) as (_, _, connect):
        reader, writer = await connect()
        writer.write(b"\x16\x03\x01 this is TLS")
        assert await reader.read() == b"HTTP/1.1 400 mine\r\n\r\n"
        assert received == [b"\x16\x03\x01 this is TLS"]


async def test_a_request_before_a_malformed_one_is_sent_once() -> None:
    async with proxied(echo) as (old, _, connect):
        reader, writer = await connect()
        writer.write(post(b"/first", b"b") + b"no HTTP\r\n\r\n")
        assert await read_response(reader) == b"/first b"
        assert b" 400 " in await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        assert old.connections == 1


async def test_a_response_before_the_end_of_a_large_request_ends_the_connection() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno")
        await reader.read()

    async with proxied(early, max_copied_bytes=1000) as (_, _, connect):
        reader, writer = await connect()
        head, _, _ = post(b"/v2/models/m/infer", bytes(4000)).rpartition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n" + bytes(1000))
        assert await read_response(reader) == b"no"
        writer.write(bytes(1000))
        assert await reader.read() == b""


async def test_the_end_of_an_early_response_reaches_a_client_that_waits_for_it() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Large\r\nConnection: close\r\n\r\nno")
        writer.close()

    async with proxied(early, max_copied_bytes=1000) as (_, _, connect):
        reader, writer = await connect()
        head, _, _ = post(b"/v2/models/m/infer", bytes(4000)).rpartition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n" + bytes(1000))
        assert (await reader.read()).endswith(b"\r\n\r\nno")


@pytest.mark.parametrize("cut", [0, 40, 170])
async def test_an_offer_to_upgrade_the_protocol_is_not_passed_on(cut: int) -> None:
    async def show(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head + body))
            writer.write(head + body)

    # As Java's HttpClient sends its first request.
    offer = b"Connection: Upgrade, HTTP2-Settings, x\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    target = b"/v2/models/m/infer"
    async with proxied(show) as (old, _, connect):
        reader, writer = await connect()
        request = post(target, b"body", offer)
        writer.write(request[:cut])
        await asyncio.sleep(0)
        writer.write(request[cut:] + request + post(target, b"more"))
        kept = post(target, b"body", b"Connection: x\r\n")
        for expected in (kept, kept, post(target, b"more")):
            assert await read_response(reader) == expected
        assert old.connections == 1


@pytest.mark.parametrize("max_copied_bytes", [1 << 20, 3])
async def test_interim_responses_are_passed_on_at_once(max_copied_bytes: int) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    has_hint = asyncio.Event()

    async def hinting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(hint)
        await has_hint.wait()
        writer.write(final)
        await read_request(reader)
        writer.write(hint)

    async with proxied(hinting, max_copied_bytes) as (old, _, connect):
        reader, writer = await connect()
        writer.write(post(b"/v2/models/m/infer", b"body"))
        assert await reader.readexactly(len(hint)) == hint
        has_hint.set()
        assert await reader.readexactly(len(final)) == final
        # The server disconnects behind the second one: the request is not sent again.
        writer.write(post(b"/v2/models/m/infer", b"body"))
        assert await reader.readexactly(len(hint)) == hint
        assert b" 502 " in await reader.readuntil(b"\r\n\r\n")
        assert old.connections == 1


async def test_an_upgrade_that_nobody_asked_for_is_passed_on() -> None:
    upgrade = b"HTTP/1.1 101 Mine\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nmore"

    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(upgrade)

    async with proxied(switch) as (_, _, connect):
        reader, writer = await connect()
        writer.write(post(b"/v2/models/m/infer", b"b"))
        assert await reader.read() == upgrade


async def test_a_request_for_a_tunnel_is_the_old_server_s_to_refuse() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 405 mine\r\n\r\n")

    async with proxied(refuse) as (_, _, connect):
        reader, writer = await connect()
        writer.write(b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n")
        assert await reader.read() == b"HTTP/1.1 405 mine\r\n\r\n"


@pytest.mark.parametrize("size", [3, 20_000])
async def test_equal_requests_get_their_own_responses(size: int) -> None:
    async with proxied(echo) as (old, proxy, connect):
        clients = [await connect() for _ in range(3)]
        for number in range(5):
            for place, (_, writer) in enumerate(clients):
                writer.write(post(b"/v2/models/m/infer", b"%d" % place * size + b"%d" % number))
            for place, (reader, _) in enumerate(clients):
                body = b"%d" % place * size + b"%d" % number
                assert await read_response(reader) == b"/v2/models/m/infer " + body
        assert old.connections == 3
        assert proxy.site.recorder.responses[0] == 15


async def test_slow_clients_together_hold_a_bounded_number_of_bytes() -> None:
    """Each gets its own response, also without a copy, and a small request has one."""
    async with proxied(echo, max_held_bytes=3 << 20) as (_, proxy, connect):
        held, target = proxy.site.held_bytes, b"/v2/models/m/infer"
        bodies = [bytes([number]) * 1_000_000 for number in range(20)]
        clients = [await connect() for _ in bodies]
        for (_, writer), body in zip(clients, bodies, strict=True):
            writer.write(post(target, body)[:-1])
            await writer.drain()
        reader, writer = await connect()
        for _ in range(3):
            writer.write(post(target, b"small"))
            assert await read_response(reader) == target + b" small"
        # At most the small begin of each one beyond the limit.
        assert 2_000_000 < held.size_bytes <= (3 << 20) + 20 * 16_384
        for (_, writer), body in zip(clients, bodies, strict=True):
            writer.write(body[-1:])
        for (reader, _), body in zip(clients, bodies, strict=True):
            assert await read_response(reader) == target + b" " + body
        # Copies are recorded a moment after the responses.
        while held.size_bytes:
            await asyncio.sleep(0)
        not_copied = proxy.site.recorder.not_copied
        assert not_copied.keys() == {("m", NO_SPACE)}
        assert 17 <= not_copied["m", NO_SPACE] <= 20


async def test_a_disconnected_client_holds_nothing() -> None:
    async with proxied(echo, max_held_bytes=3 << 20) as (_, proxy, connect):
        _, writer = await connect()
        writer.write(post(b"/v2/models/m/infer", bytes(1_000_000))[:-1])
        while proxy.site.held_bytes.size_bytes != 999_999:
            await asyncio.sleep(0)
        writer.transport.abort()
        while proxy.site.held_bytes.size_bytes:
            await asyncio.sleep(0)


@pytest.mark.usefixtures("_without_garbage_collection")
@pytest.mark.parametrize("target", [b"/v2/models/m/infer", b"/v2/repository/models/m/load", b"/x"])
@pytest.mark.parametrize("max_copied_bytes", [1 << 20, 10_000])
async def test_a_call_that_has_its_response_holds_nothing(
    target: bytes, max_copied_bytes: int
) -> None:
    async def fail_third(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            if body.endswith(b"3"):
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with proxied(fail_third, max_copied_bytes=max_copied_bytes) as (_, proxy, connect):
        reader, writer = await connect()
        for number in (b"1", b"2", b"3"):
            body = bytes(100_000) + number
            writer.write(post(target, body))
            if number == b"3":
                assert b" 502 " in await reader.readuntil(b"\r\n\r\n")
            else:
                assert await read_response(reader) == body
            # Copies are recorded a moment after the responses.
            while proxy.site.held_bytes.size_bytes:
                await asyncio.sleep(0)


async def test_a_sequence_without_space_is_not_compared_until_it_starts_anew() -> None:
    async with proxied(echo, max_held_bytes=0) as (_, proxy, connect):
        reader, writer = await connect()
        target = b"/v2/models/m/infer"
        for size in (100_000, 10):
            text = json.dumps({"parameters": {"sequence_id": 1}}).encode()
            head = b"Inference-Header-Content-Length: %d\r\n" % len(text)
            writer.write(post(target, text + bytes(size), head))
            assert (await read_response(reader)).endswith(bytes(size))
        not_copied = proxy.site.recorder.not_copied
        while ("m", BROKEN_SEQUENCE) not in not_copied:
            await asyncio.sleep(0)
        assert not_copied == {("m", NO_SPACE): 1, ("m", BROKEN_SEQUENCE): 1}


def sequence_body(**parameters: object) -> bytes:
    return json.dumps({"parameters": {"sequence_id": 1, **parameters}}).encode()


@pytest.mark.parametrize("is_reachable", [False, True])
async def test_only_a_sequence_with_copies_fails_over_after_its_start(is_reachable: bool) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nmine")

    new = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"127.0.0.1:{new.sockets[0].getsockname()[1]}" if is_reachable else _NOBODY
    target = b"/v2/models/m/infer"
    async with proxied(echo, new_address=address) as (_, proxy, connect):
        site = proxy.site
        site.traffic.weight = 100
        reader, writer = await connect()
        for percent in (100.0, 0.0):
            site.traffic.copied_percent = percent
            for start in (True, False):
                step = SequenceStep("m", str(percent), start=start, end=False)
                if not start:
                    site.traffic.note_step(step, Side.NEW)
                body = sequence_body(sequence_start=start, sequence_id=str(percent))
                writer.write(post(target, body))
                response = await read_response(reader)
                if percent or start:
                    assert response == target + b" " + body
                    assert site.traffic.side_of_request(step._replace(start=False)) is Side.OLD
                else:
                    assert response == b"mine" if is_reachable else b"cannot connect" in response
        assert site.recorder.failovers == 3
        assert site.recorder.failures == (not is_reachable)
    new.close()


async def test_inferences_without_copies_hold_no_response() -> None:
    async def grow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + bytes(100_000))
            await go_on.wait()
            writer.write(bytes(100_000))

    async with proxied(grow) as (_, proxy, connect):
        held, recorder = proxy.site.held_bytes, proxy.site.recorder
        for percent in (100.0, 0.0):
            go_on = asyncio.Event()
            proxy.site.traffic.copied_percent = percent
            reader, writer = await connect()
            writer.write(post(b"/v2/models/m/infer", b"{}"))
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(100_000)
            assert held.size_bytes == (100_002 if percent else 2)
            go_on.set()
            await reader.readexactly(100_000)
            while held.size_bytes:
                await asyncio.sleep(0)
        assert (recorder.not_sampled, recorder.not_copied.total()) == (1, 0)


@pytest.mark.parametrize("verb", [b"infer", b"generate_stream"])
async def test_what_is_not_sampled_counts_as_that_alone(verb: bytes) -> None:
    async with proxied(echo, max_copied_bytes=1000) as (_, proxy, connect):
        proxy.site.traffic.copied_percent = 0
        reader, writer = await connect()
        writer.write(post(b"/v2/models/m/" + verb, bytes(4000)))
        await read_response(reader)
        assert proxy.site.recorder.not_sampled == 1
        assert proxy.site.recorder.not_copied.total() == 0
