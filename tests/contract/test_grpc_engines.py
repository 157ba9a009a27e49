"""What serves gRPC: one contract for our own engine and for grpcio's, by grpcio's clients."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from nereid.rpc import Call, RpcError, ServerOptions, SocketChannel, Status
from nereid.rpc.grpc.server import Server
from nereid.rpc.grpcio_engine import GrpcioServer
from nereid.rpc.net.address import client_of, host_and_port
from nereid.rpc.net.tls_files import Tls, TlsFiles
from tests.support.peers.certificates import Authority
from tests.support.rpc.echo_service import ENGINES, LIMIT_S, Site, serving
from tests.support.waiting import soon

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
BIG = bytes(range(256)) * 200_000


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture
async def address(engine: str, site: Site) -> AsyncIterator[str]:
    async with serving(engine, site) as (_, real):
        yield real


@pytest.fixture
async def client(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=UNLIMITED) as channel:
        yield channel


def unary(client: Any, path: str) -> Any:
    return client.unary_unary(path)


async def test_a_unary_call(client: Any) -> None:
    assert await unary(client, "/test/Echo")(b"hello") == b"hello"
    assert await unary(client, "/test/Echo")(b"") == b""
    assert await unary(client, "/test/Later")(b"abc") == b"cba"


async def test_many_calls_at_once(client: Any) -> None:
    calls = [unary(client, "/test/Echo")(b"%d" % number) for number in range(200)]
    assert [await call for call in calls] == [b"%d" % number for number in range(200)]


async def test_big_messages_both_ways(client: Any) -> None:
    assert await unary(client, "/test/Echo")(BIG, timeout=60) == BIG


async def test_metadata_reaches_the_handler(client: Any, site: Site) -> None:
    metadata = (("a", "one"), ("a", "two"), ("raw-bin", b"\x00\xff,"), ("empty", ""))
    await unary(client, "/test/Echo")(b"", metadata=metadata)
    call = site.calls[0]
    got = [pair for pair in call.metadata if pair[0] != "user-agent"]
    assert sorted(got, key=repr) == sorted(metadata, key=repr)
    assert call.get("raw-bin") == b"\x00\xff,"
    assert call.get("a") == "one"
    assert call.get("none") is None
    assert call.path == "/test/Echo"
    assert call.deadline is None
    assert client_of(call.peer) == "127.0.0.1"


async def test_a_client_over_ipv6_is_known(engine: str, site: Site) -> None:
    async with (
        serving(engine, site, "[::1]:0") as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        assert await unary(channel, "/test/Echo")(b"x") == b"x"
    assert client_of(site.calls[0].peer) == "::1"


async def test_a_call_that_is_not_admitted_reaches_no_handler(engine: str, site: Site) -> None:
    def admit(call: Call) -> None:
        if call.get("key") != "right":
            raise RpcError(Status.UNAUTHENTICATED, "no key")

    server = ENGINES[engine](replace(site.handlers(), admit=admit))
    try:
        async with grpc.aio.insecure_channel(await server.listen("127.0.0.1:0")) as channel:
            for path in ("/test/Echo", "/test/Later"):
                assert await unary(channel, path)(b"", metadata=(("key", "right"),)) == b""
                with pytest.raises(grpc.aio.AioRpcError, match="no key"):
                    await unary(channel, path)(b"")
            stream: Any = channel.stream_stream("/test/Chat")()
            assert await stream.code() == grpc.StatusCode.UNAUTHENTICATED
        assert len(site.calls) == 1
    finally:
        await server.close()


async def test_an_error_carries_text_and_trailers(client: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(client, "/test/Refuse")(b"")
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "nicht möglich: 100 % ✓\n"
    assert dict(caught.value.trailing_metadata()) == {"why": "because", "why-bin": b"\x00\xff"}


@pytest.mark.parametrize("path", ["/test/Break", "/test/BreakLater"])
async def test_an_unknown_error_has_a_fixed_text(
    client: Any, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(client, path)(b"")
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in (caught.value.details() or "")
    assert "a secret" in caplog.text


async def test_an_unknown_method(client: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(client, "/test/Nothing")(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_passes(client: Any, site: Site) -> None:
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(client, "/test/Hold")(b"", timeout=0.5)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await soon(site.cancelled)
    call = site.calls[0]
    assert call.deadline is not None
    assert 0 < call.deadline - started < LIMIT_S
    assert call.done
    call.reply(b"too late")


async def test_a_deadline_ends_a_coroutine(client: Any, site: Site) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(client, "/test/Never")(b"", timeout=0.5)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await soon(site.cancelled)


@pytest.mark.parametrize("path", ["/test/Hold", "/test/Never"])
async def test_a_client_cancels(client: Any, site: Site, path: str) -> None:
    call = unary(client, path)(b"")
    waiting = asyncio.ensure_future(call.code())
    await soon(site.seen)
    call.cancel()
    await soon(site.cancelled)
    assert await waiting == grpc.StatusCode.CANCELLED


async def test_a_response_from_another_callback(client: Any, site: Site) -> None:
    call = unary(client, "/test/Hold")(b"x")
    waiting = asyncio.ensure_future(call.code())
    await soon(site.seen)
    site.calls[0].reply(b"now")
    site.calls[0].reply(b"twice")
    site.calls[0].fail(Status.ABORTED, "and again")
    assert await call == b"now"
    assert await waiting == grpc.StatusCode.OK
    assert not site.cancelled.is_set()


async def test_a_response_in_parts_may_have_trailers(client: Any, site: Site) -> None:
    call = unary(client, "/test/Hold")(b"x")
    waiting = asyncio.ensure_future(call.code())
    await soon(site.seen)
    site.calls[0].reply_parts([b"one, ", memoryview(b"two")], (("why", "because"),))
    assert await call == b"one, two"
    assert await waiting == grpc.StatusCode.OK
    assert dict(await call.trailing_metadata()) == {"why": "because"}


async def test_server_streaming(client: Any) -> None:
    call = client.unary_stream("/test/Count")(b"50")
    assert [message async for message in call] == [b"%d" % each for each in range(50)]
    assert ("count", "50") in tuple(await call.trailing_metadata())
    failing = client.unary_stream("/test/Count")(b"3")
    assert [await failing.read() for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await failing.read()
    assert caught.value.code() == grpc.StatusCode.ABORTED
    assert caught.value.details() == "odd"


async def test_bidirectional_streaming_in_turns(client: Any) -> None:
    call = client.stream_stream("/test/Chat")()
    for number in range(20):
        await call.write(b"%d" % number)
        assert await call.read() == b"%d" % number
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() == grpc.StatusCode.OK


async def test_a_stream_is_accepted_before_it_speaks(client: Any, site: Site) -> None:
    call = client.stream_stream("/test/Open")()
    await call.initial_metadata()
    await call.write(b"one")
    await call.done_writing()
    await soon(site.half_closed)
    assert site.messages == [b"one"]
    site.calls[0].finish(Status.OK)
    assert await call.code() == grpc.StatusCode.OK


async def test_a_stream_is_cancelled(client: Any, site: Site) -> None:
    call = client.stream_stream("/test/Open")()
    await call.initial_metadata()
    call.cancel()
    await soon(site.cancelled)
    assert site.calls[0].done


async def test_client_streaming_of_much(client: Any) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield BIG[:1_000_000]

    assert await client.stream_unary("/test/Sink")(chunks()) == b"40000000"


async def test_a_paused_stream_holds_its_client_back(client: Any, site: Site) -> None:
    call = client.stream_stream("/test/Sink")()

    async def write() -> None:
        for _ in range(40):
            await call.write(BIG[:1_000_000])
        await call.done_writing()

    await call.wait_for_connection()
    await soon(site.seen)
    site.calls[0].pause()
    writing = asyncio.ensure_future(write())
    done, _ = await asyncio.wait([writing], timeout=0.2)
    assert not done
    site.calls[0].resume()
    await writing
    assert await call.read() == b"40000000"


async def test_a_slow_reader_is_seen_in_buffered_bytes(client: Any, site: Site) -> None:
    call = client.stream_stream("/test/Open")()
    await call.initial_metadata()
    server_call = site.calls[0]
    writable = asyncio.Event()
    server_call.on_writable = writable.set
    for _ in range(20):
        server_call.send(BIG[:1_000_000])
    assert server_call.buffered_bytes > 10_000_000
    server_call.finish()
    got = 0
    async for message in call:
        got += len(message)
    assert got == 20_000_000
    assert server_call.buffered_bytes == 0


@pytest.mark.parametrize(
    "compression", [grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression]
)
async def test_compressed_requests(address: str, compression: grpc.Compression) -> None:
    async with grpc.aio.insecure_channel(address, compression=compression) as channel:
        message = b"squeeze me " * 10_000
        assert await unary(channel, "/test/Echo")(message) == message


@pytest.mark.parametrize(
    ("level", "encoding"), [("none", "identity"), ("low", "gzip"), ("high", "deflate")]
)
async def test_responses_are_compressed_as_the_level_says(
    engine: str, site: Site, level: str, encoding: str
) -> None:
    options = ServerOptions(compression=level)
    async with serving(engine, site, options=options) as (_, address):
        channel, closed = SocketChannel(address), asyncio.Event()
        messages: list[bytes] = []
        stream = channel.stream(
            "/test/Echo", on_message=messages.append, on_close=lambda _: closed.set()
        )
        stream.send(bytes(4000))
        stream.half_close()
        await soon(closed)
        assert messages == [bytes(4000)]
        assert stream.encoding == encoding
        await channel.close()


async def test_connections_beyond_the_limit_fail_until_another_is_closed(
    engine: str, site: Site
) -> None:
    alone = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
    async with serving(engine, site, options=ServerOptions(max_connections=1)) as (_, address):
        first: Any = grpc.aio.insecure_channel(address, options=alone)
        second: Any = grpc.aio.insecure_channel(address, options=alone)
        assert await unary(first, "/test/Echo")(b"x", timeout=LIMIT_S) == b"x"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(second, "/test/Echo")(b"x", timeout=LIMIT_S)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await first.close()
        echo = unary(second, "/test/Echo")
        assert await echo(b"x", timeout=LIMIT_S, wait_for_ready=True) == b"x"
        await second.close()


@pytest.mark.parametrize("mutual", [False, True])
async def test_tls(engine: str, mutual: bool, site: Site, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours, client = authority.identity(), authority.identity("client", files="client")
    root = Path(authority.root).read_bytes()
    shown = (Path(client.key).read_bytes(), Path(client.cert).read_bytes())
    files = TlsFiles(cert=ours.cert, key=ours.key, root=authority.root if mutual else "", alpn="h2")
    tls = Tls(files, server=True)

    async def echo(address: str, *identity: bytes) -> bytes:
        credentials = grpc.ssl_channel_credentials(root, *identity)
        async with grpc.aio.secure_channel(address, credentials) as channel:
            return bytes(await unary(channel, "/test/Echo")(BIG[:3_000_000], timeout=LIMIT_S))

    async with serving(engine, site, tls=tls) as (_, address):
        assert await echo(address, *(shown if mutual else ())) == BIG[:3_000_000]
        if mutual:
            with pytest.raises(grpc.aio.AioRpcError):
                await echo(address)


async def test_a_certificate_is_renewed_by_its_files(
    engine: str, site: Site, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    identity = authority.identity()
    context = ssl.create_default_context(cafile=authority.root)
    context.set_alpn_protocols(["h2"])

    async def served(address: str) -> str:
        _, writer = await asyncio.open_connection(*host_and_port(address), ssl=context)
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.transport.abort()
        return str(shown)

    tls = Tls(TlsFiles(cert=identity.cert, key=identity.key, alpn="h2"), server=True)
    async with serving(engine, site, tls=tls) as (_, address):
        first = await served(address)
        authority.identity()
        # Not files whose writer may not be done.
        for path in (identity.cert, identity.key):
            os.utime(path, (1, 1))
        assert await served(address) != first


async def test_a_request_that_is_too_large(engine: str, site: Site) -> None:
    options = ServerOptions(max_message_bytes=1000)
    async with serving(engine, site, options=options) as (_, address):
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            async with grpc.aio.insecure_channel(address, compression=compression) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await unary(channel, "/test/Echo")(bytes(100_000))
                assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert await unary(channel, "/test/Echo")(bytes(1000)) == bytes(1000)


async def test_drain_lets_calls_finish_and_refuses_new_ones(engine: str, site: Site) -> None:
    async with (
        serving(engine, site) as (server, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = unary(channel, "/test/Hold")(b"x")
        waiting = asyncio.ensure_future(call.code())
        await soon(site.seen)
        draining = asyncio.ensure_future(server.drain(20))
        with pytest.raises(RpcError):
            await refusal_of(address)
        site.calls[0].reply(b"finished")
        assert await call == b"finished"
        assert await waiting == grpc.StatusCode.OK
        await draining


async def refusal_of(address: str) -> None:
    """Calls until the draining server refuses, which it does once it has stopped listening."""
    async with asyncio.timeout(10):
        while True:
            channel = SocketChannel(address)
            try:
                await channel.unary("/test/Echo", b"", timeout_s=5)
            finally:
                await channel.close()


async def test_drain_cuts_what_outlasts_its_grace(engine: str, site: Site) -> None:
    async with (
        serving(engine, site) as (server, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = unary(channel, "/test/Hold")(b"x")
        waiting = asyncio.ensure_future(call.code())
        await soon(site.seen)
        await server.drain(0.05)
        await soon(site.cancelled)
        assert await waiting in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


@pytest.fixture
def plain_client(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        yield channel


async def test_the_threaded_client(plain_client: Any) -> None:
    def use() -> None:
        assert plain_client.unary_unary("/test/Echo")(b"x", timeout=10) == b"x"
        responses = plain_client.stream_stream("/test/Chat")(iter([b"a", b"b"]), timeout=10)
        assert list(responses) == [b"a", b"b"]
        with pytest.raises(grpc.RpcError) as caught:
            plain_client.unary_unary("/test/Refuse")(b"", timeout=10)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    await asyncio.to_thread(use)


async def test_at_a_unix_socket(engine: str, site: Site, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("s") / "rpc.sock"
    async with serving(engine, site, f"unix:{path}") as (_, address):
        assert address == f"unix:{path}"
        async with grpc.aio.insecure_channel(address) as channel:
            assert await unary(channel, "/test/Echo")(b"x") == b"x"
        assert client_of(site.calls[0].peer) == ""
        with pytest.raises(OSError, match="in use"):
            async with serving(engine, site, address):
                pass
    assert not path.exists()


async def test_several_addresses(engine: str, site: Site) -> None:
    async with serving(engine, site) as (server, first):
        second = await server.listen("127.0.0.1:0")
        assert first != second
        for address in (first, second):
            async with grpc.aio.insecure_channel(address) as channel:
                assert await unary(channel, "/test/Echo")(b"x") == b"x"


async def test_a_taken_port_is_an_os_error(engine: str, site: Site, address: str) -> None:
    server: Server | GrpcioServer = ENGINES[engine](site.handlers())
    with pytest.raises(OSError, match=r"(?:cannot|in use)"):
        await server.listen(address)
    await server.close()
