"""Our clients: one contract for the channel over sockets and in memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nereid.rpc import (
    BackoffOptions,
    BlockingStream,
    Channel,
    ChannelOptions,
    NotConnectedError,
    RpcError,
    Server,
    ServerOptions,
    SocketChannel,
    Status,
)
from tests.support.rpc.echo_service import BIG, Site, is_served, serving
from tests.support.rpc.local_channel import LocalChannel
from tests.support.waiting import soon, until

FAST = ChannelOptions(backoff=BackoffOptions(first_s=0.001, largest_s=0.01))


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture(params=["own", "local"])
async def channel(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[Channel]:
    if request.param == "local":
        local = LocalChannel(site.handlers())
        yield local
        await local.close()
        return
    async with serving("own", site) as (_, address):
        remote = SocketChannel(address)
        yield remote
        await remote.close()


class StreamRecorder:
    """What a client's stream received."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.error: RpcError | None = None
        self.closed = asyncio.Event()
        self.received = asyncio.Event()

    def on_message(self, message: bytes) -> None:
        self.messages.append(message)
        self.received.set()

    def on_close(self, error: RpcError | None) -> None:
        assert not self.closed.is_set()
        self.error = error
        self.closed.set()


async def test_unary(channel: Channel) -> None:
    assert await channel.unary("/test/Echo", b"x", timeout_s=10) == b"x"
    assert await channel.unary("/test/Echo", b"") == b""
    assert await channel.unary("/test/Later", b"abc") == b"cba"


async def test_metadata(channel: Channel, site: Site) -> None:
    metadata = (("a", "one"), ("a", "two"), ("raw-bin", b"\x00\xff"))
    await channel.unary("/test/Echo", b"", metadata=metadata, timeout_s=30)
    call = site.calls[0]
    assert [pair for pair in call.metadata if pair[0] != "user-agent"] == list(metadata)
    assert call.deadline is not None


async def test_errors(channel: Channel) -> None:
    with pytest.raises(RpcError) as caught:
        await channel.unary("/test/Refuse", b"")
    assert caught.value.status == Status.FAILED_PRECONDITION
    assert caught.value.message == "nicht möglich: 100 % ✓\n"
    assert set(caught.value.trailers) == {("why", "because"), ("why-bin", b"\x00\xff")}
    with pytest.raises(RpcError) as caught:
        await channel.unary("/test/Break", b"")
    assert caught.value.status == Status.INTERNAL
    with pytest.raises(RpcError) as caught:
        await channel.unary("/test/Nothing", b"")
    assert caught.value.status == Status.UNIMPLEMENTED


@pytest.mark.parametrize("path", ["/test/Hold", "/test/Never"])
async def test_a_deadline(channel: Channel, site: Site, path: str) -> None:
    timeout_s = 0.05
    # On a busy machine the deadline may pass before the handler has begun.
    while not site.seen.is_set():
        with pytest.raises(RpcError) as caught:
            await channel.unary(path, b"", timeout_s=timeout_s)
        assert caught.value.status == Status.DEADLINE_EXCEEDED
        timeout_s *= 2
    await soon(site.cancelled)


@pytest.mark.parametrize("path", ["/test/Hold", "/test/Never"])
async def test_cancelling_a_unary_call(channel: Channel, site: Site, path: str) -> None:
    task = asyncio.ensure_future(channel.unary(path, b""))
    await soon(site.seen)
    task.cancel()
    await soon(site.cancelled)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream(channel: Channel) -> None:
    recorder = StreamRecorder()
    stream = channel.stream(
        "/test/Chat", on_message=recorder.on_message, on_close=recorder.on_close
    )
    messages = [b"%d" % number * 100 for number in range(100)]
    for message in messages:
        stream.send(message)
    stream.half_close()
    stream.send(b"ignored")
    await soon(recorder.closed)
    assert recorder.messages == messages
    assert recorder.error is None
    assert stream.buffered_bytes == 0


async def test_a_stream_that_fails(channel: Channel) -> None:
    recorder = StreamRecorder()
    stream = channel.stream(
        "/test/Count", on_message=recorder.on_message, on_close=recorder.on_close
    )
    stream.send(b"3")
    await soon(recorder.closed)
    assert recorder.messages == [b"0", b"1", b"2"]
    assert recorder.error is not None
    assert recorder.error.status == Status.ABORTED
    stream.send(b"nobody listens")
    stream.cancel()


async def test_an_accepted_stream_says_so(channel: Channel, site: Site) -> None:
    recorder, opened = StreamRecorder(), asyncio.Event()
    stream = channel.stream(
        "/test/Open", on_message=recorder.on_message, on_close=recorder.on_close, on_open=opened.set
    )
    await soon(opened)
    stream.cancel()
    await soon(site.cancelled)
    assert not recorder.closed.is_set()


async def test_a_held_back_client_sees_its_buffer_and_when_it_empties(
    channel: Channel, site: Site
) -> None:
    recorder, writable = StreamRecorder(), asyncio.Event()
    stream = channel.stream(
        "/test/Sink",
        on_message=recorder.on_message,
        on_close=recorder.on_close,
        on_writable=writable.set,
    )
    await soon(site.seen)
    site.calls[0].pause()
    for _ in range(20):
        stream.send(BIG[:1_000_000])
    await until(lambda: stream.buffered_bytes > 10_000_000)
    site.calls[0].resume()
    await soon(writable)
    stream.half_close()
    await soon(recorder.closed)
    assert recorder.messages == [b"20000000"]


async def test_a_client_holds_its_server_back(channel: Channel, site: Site) -> None:
    recorder = StreamRecorder()
    stream = channel.stream(
        "/test/Open", on_message=recorder.on_message, on_close=recorder.on_close
    )
    await soon(site.seen)
    stream.pause()
    call = site.calls[0]
    for _ in range(20):
        call.send(BIG[:1_000_000])
    await until(lambda: call.buffered_bytes > 10_000_000)
    stream.resume()
    await until(lambda: len(recorder.messages) == 20)
    await until(lambda: call.buffered_bytes == 0)
    stream.cancel()


async def test_closing_a_channel_fails_calls_in_flight(channel: Channel, site: Site) -> None:
    recorder = StreamRecorder()
    channel.stream("/test/Open", on_message=recorder.on_message, on_close=recorder.on_close)
    await soon(site.seen)
    await channel.close()
    await soon(recorder.closed)
    assert recorder.error is not None
    assert recorder.error.status == Status.UNAVAILABLE
    await soon(site.cancelled)
    with pytest.raises(RpcError) as caught:
        await channel.unary("/test/Echo", b"")
    assert caught.value.status == Status.UNAVAILABLE


async def test_a_channel_in_memory_forgets_streams_that_are_cancelled(site: Site) -> None:
    local = LocalChannel(site.handlers())
    with pytest.raises(RpcError, match="deadline"):
        await local.unary("/test/Hold", b"", timeout_s=0.01)
    await soon(site.cancelled)
    assert not local.streams
    await local.close()


# --- what only sockets have


async def test_no_server_listens(tmp_path: Path) -> None:
    channel = SocketChannel(f"unix:{tmp_path}/none")
    # The second finds that dialling has just failed.
    for _ in range(2):
        with pytest.raises(NotConnectedError, match="cannot connect") as caught:
            await channel.unary("/test/Echo", b"")
        assert caught.value.status == Status.UNAVAILABLE
    await channel.close()


async def test_a_server_that_comes_back(tmp_path: Path, site: Site) -> None:
    address = f"unix:{tmp_path}/s"
    channel = SocketChannel(address, FAST)
    for _ in range(2):
        async with serving("own", site, address):
            await until(lambda: is_served(channel))
        with pytest.raises(RpcError):
            await channel.unary("/test/Echo", b"x")
    await channel.close()


async def test_calls_share_one_dial(site: Site) -> None:
    async with serving("own", site) as (_, address):
        channel = SocketChannel(address)
        await asyncio.gather(*(channel.unary("/test/Echo", b"x") for _ in range(50)))
        assert len({call.peer for call in site.calls}) == 1
        await channel.close()


async def test_calls_queue_at_the_servers_limit(site: Site) -> None:
    options = ServerOptions(max_concurrent_streams=3)
    async with serving("own", site, options=options) as (_, address):
        channel = SocketChannel(address)
        assert await channel.unary("/test/Echo", b"x") == b"x"
        calls = [asyncio.ensure_future(channel.unary("/test/Hold", b"x")) for _ in range(10)]
        for responded in range(0, 9, 3):
            await until(lambda responded=responded: len(site.calls) >= 1 + responded + 3)
            assert len(site.calls) == 1 + responded + 3
            for call in site.calls[-3:]:
                call.reply(b"y")
        await until(lambda: len(site.calls) == 11)
        site.calls[-1].reply(b"y")
        assert await asyncio.gather(*calls) == [b"y"] * 10
        await channel.close()


async def test_a_burst_before_the_limit_is_known_is_retried(site: Site) -> None:
    options = ServerOptions(max_concurrent_streams=40)
    async with serving("own", site, options=options) as (_, address):
        channel = SocketChannel(address)
        calls = [asyncio.ensure_future(channel.unary("/test/Later", b"xy")) for _ in range(90)]
        assert await asyncio.gather(*calls) == [b"yx"] * 90
        await channel.close()


async def test_a_leaving_server_loses_no_call(tmp_path: Path, site: Site) -> None:
    """Calls made while the server drains are refused unprocessed and reach its successor."""
    address = f"unix:{tmp_path}/s"
    channel = SocketChannel(address, FAST)
    old = Server(site.handlers())
    await old.listen(address)
    held = asyncio.ensure_future(channel.unary("/test/Hold", b"x"))
    await soon(site.seen)
    draining = asyncio.ensure_future(old.drain(20))
    await asyncio.sleep(0)
    async with serving("own", site, address):
        assert await channel.unary("/test/Echo", b"x") == b"x"
        site.calls[0].reply(b"y")
        assert await held == b"y"
        await draining
        await channel.close()


async def test_keepalive_notices_a_peer_that_hangs() -> None:
    """The peer accepts and sends nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        options = ChannelOptions(keepalive_interval_s=0.05, keepalive_timeout_s=0.05)
        channel = SocketChannel(f"127.0.0.1:{listener.getsockname()[1]}", options)
        async with asyncio.timeout(10):
            with pytest.raises(RpcError) as caught:
                await channel.unary("/test/Echo", b"x")
        assert caught.value.status == Status.UNAVAILABLE
        await channel.close()


async def test_the_servers_keepalive_drops_stopped_clients_only(site: Site) -> None:
    options = ServerOptions(keepalive_interval_s=0.05, keepalive_timeout_s=1.5)
    async with serving("own", site, options=options) as (_, address):
        recorder = StreamRecorder()
        channel = SocketChannel(address)
        channel.stream("/test/Open", on_message=recorder.on_message, on_close=recorder.on_close)
        await soon(site.seen)
        living = site.calls[0]
        # As good as stopped: its socket is never read.
        stopped = await asyncio.to_thread(BlockingStream, address, "/test/Open", timeout_s=10)
        await until(lambda: len(site.calls) == 2)
        with stopped._lock:
            await until(lambda: site.calls[1].done)
        assert not living.done
        stopped.close()
        await channel.close()


async def test_not_a_grpc_server() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    channel = SocketChannel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", FAST)
    with pytest.raises(RpcError) as caught:
        await channel.unary("/test/Echo", b"x", timeout_s=10)
    assert caught.value.status == Status.UNAVAILABLE
    await channel.close()
    server.close()
