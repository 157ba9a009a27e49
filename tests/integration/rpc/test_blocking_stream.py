"""The client that blocks its thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nereid.rpc import (
    BlockingStream,
    RpcError,
    ServerOptions,
    SocketChannel,
    Status,
    open_for_other_process,
)
from nereid.rpc.net.tls_files import Tls, TlsFiles
from tests.support.peers.certificates import Authority
from tests.support.rpc.echo_service import BIG, Site, poll_messages, serving
from tests.support.waiting import soon, until


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture
async def address(site: Site) -> AsyncIterator[str]:
    async with serving("own", site) as (_, real):
        yield real


async def in_thread(work: Callable[[], None]) -> None:
    await asyncio.wait_for(asyncio.to_thread(work), 30)


def chat(stream: BlockingStream) -> None:
    for number in range(50):
        stream.send(b"%d" % number)
        assert stream.receive() == b"%d" % number
    stream.send(BIG)
    assert stream.receive() == BIG


async def test_blocking_turns(address: str) -> None:
    def work() -> None:
        stream = BlockingStream(address, "/test/Chat", metadata=(("a", "b"),), timeout_s=10)
        chat(stream)
        stream.close()
        assert stream.receive() is None
        stream.close()

    await in_thread(work)


async def test_a_stream_that_another_process_has_opened(address: str) -> None:
    def work() -> None:
        metadata = (("a", "b"),)
        connected = open_for_other_process(address, "/test/Chat", metadata=metadata, timeout_s=10)
        stream = BlockingStream(address, "/test/Chat", timeout_s=10, opened=connected)
        chat(stream)
        stream.close()

    await in_thread(work)


async def test_no_server_for_a_stream_of_another_process(tmp_path: Path) -> None:
    with pytest.raises(RpcError, match="cannot connect to unix:") as refused:
        open_for_other_process(f"unix:{tmp_path}/none", "/test/Chat", timeout_s=1)
    assert refused.value.status == Status.UNAVAILABLE


async def test_blocking_while_polling_other_sources(address: str) -> None:
    """An owner with other sources polls, and takes the messages that are there."""

    def work() -> None:
        stream = BlockingStream(address, "/test/Chat", timeout_s=10, background_keepalive=False)
        assert stream.read_messages() == []
        for message in (b"a", BIG, b"", b"b"):
            stream.send(message)
            assert poll_messages(stream) == [message]
        for number in range(20):
            stream.send(b"%d" % number)
        messages: list[bytes] = []
        while len(messages) < 20:
            messages += poll_messages(stream)
        assert messages == [b"%d" % number for number in range(20)]
        assert not stream.ended
        stream.close()
        assert stream.ended
        assert stream.read_messages() == []
        failing = BlockingStream(address, "/test/Count", timeout_s=10, background_keepalive=False)
        failing.send(b"1")
        assert poll_messages(failing) == [b"0"]
        with pytest.raises(RpcError) as caught:
            poll_messages(failing)
        assert caught.value.status == Status.ABORTED
        failing.close()

    await in_thread(work)


async def test_blocking_with_reads_from_another_thread(address: str) -> None:
    def work() -> None:
        stream = BlockingStream(address, "/test/Chat", timeout_s=10, background_keepalive=False)
        assert stream.read_from_any_thread() == []
        with ThreadPoolExecutor(1) as pool:
            for message in (b"a", b"b"):
                stream.send(message)
                found: list[bytes] = []
                while not found:
                    # The server's settings and the response's headers may come before it.
                    assert select.select([stream.fileno()], [], [], 10)[0]
                    found = pool.submit(stream.read_from_any_thread).result()
                assert found == [message]
        stream.send(b"c")
        assert stream.receive() == b"c"
        stream.close()
        assert stream.read_from_any_thread() == []

    await in_thread(work)


async def test_blocking_ends(address: str) -> None:
    def work() -> None:
        stream = BlockingStream(address, "/test/Count", timeout_s=10)
        stream.send(b"2")
        assert [stream.receive() for _ in range(4)] == [b"0", b"1", None, None]
        stream.close()
        failing = BlockingStream(address, "/test/Count", timeout_s=10)
        failing.send(b"1")
        assert failing.receive() == b"0"
        with pytest.raises(RpcError) as caught:
            failing.receive()
        assert caught.value.status == Status.ABORTED
        with pytest.raises(RpcError):
            failing.send(b"x")
        failing.close()

    await in_thread(work)


async def test_blocking_until_another_thread_cuts_it(address: str, site: Site) -> None:
    stream = await asyncio.to_thread(BlockingStream, address, "/test/Open", timeout_s=10)
    waiting = asyncio.ensure_future(asyncio.to_thread(stream.receive))
    await soon(site.seen)
    stream.cut()
    assert await asyncio.wait_for(waiting, 10) is None
    stream.close()
    await soon(site.cancelled)


async def test_a_stream_that_another_thread_cuts_keeps_its_descriptor(address: str) -> None:
    """Its owner may be about to wait for it, and would wait for whatever socket has it next."""

    def work() -> None:
        stream = BlockingStream(address, "/test/Chat", timeout_s=10)
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLIN)
        cutting = threading.Thread(target=stream.cut)
        cutting.start()
        cutting.join()
        assert stream.fileno() >= 0
        assert poll.poll(10_000), "nothing wakes the owner"
        assert stream.receive() is None
        stream.close()
        assert stream.fileno() == -1

    await in_thread(work)


async def test_blocking_when_the_server_dies(site: Site) -> None:
    async with serving("own", site) as (server, address):
        stream = await asyncio.to_thread(BlockingStream, address, "/test/Open", timeout_s=10)
        waiting = asyncio.ensure_future(asyncio.to_thread(stream.receive))
        await soon(site.seen)
        await server.close()
        with pytest.raises(RpcError) as caught:
            await waiting
        assert caught.value.status == Status.UNAVAILABLE
        stream.close()


async def test_blocking_without_a_server(tmp_path: Path) -> None:
    for address in (f"unix:{tmp_path}/none", "127.0.0.1:1"):
        with pytest.raises(RpcError, match="cannot connect") as caught:
            BlockingStream(address, "/test/Chat", timeout_s=5)
        assert caught.value.status == Status.UNAVAILABLE
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RpcError, match="does not respond"):
            BlockingStream(address, "/test/Chat", timeout_s=0.05)


async def test_blocking_flow_control(site: Site) -> None:
    """A send blocks while the server holds the stream back."""
    async with serving("own", site) as (_, address):
        sent = threading.Event()

        def work() -> None:
            stream = BlockingStream(address, "/test/Sink", timeout_s=10)
            for _ in range(10):
                stream.send(BIG[:1_000_000])
            sent.set()
            stream.close()

        task = asyncio.ensure_future(asyncio.to_thread(work))
        await soon(site.seen)
        site.calls[0].pause()
        # Turns of the server's loop, in which it would read more.
        channel = SocketChannel(address)
        for _ in range(100):
            await channel.unary("/test/Echo", b"x")
        assert not sent.is_set()
        site.calls[0].resume()
        await asyncio.wait_for(task, 10)
        await channel.close()


@pytest.fixture
def crowd() -> Iterator[None]:
    """A thousand open descriptors: those that follow are beyond what select() takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        for _ in range(1024):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
async def test_pings_get_replies_while_the_owner_is_busy(
    site: Site, crowd: None, tmp_path: Path, secure: bool
) -> None:
    options = ServerOptions(keepalive_interval_s=0.1, keepalive_timeout_s=1.5)
    server_tls: Tls | None = None
    client_tls: Tls | None = None
    if secure:
        ours = Authority(tmp_path)
        identity = ours.identity()
        files = TlsFiles(cert=identity.cert, key=identity.key, alpn="h2")
        server_tls = Tls(files, server=True)
        client_tls = Tls(TlsFiles(root=ours.root, alpn="h2"), server=False)
    async with serving("own", site, options=options, tls=server_tls) as (_, address):
        stream = await asyncio.to_thread(
            BlockingStream, address, "/test/Open", timeout_s=10, tls=client_tls
        )
        # The owner computes meanwhile. The server sends a second ping once it has the first reply.
        await until(lambda: stream._http2.control.pings >= 2)
        assert not site.calls[0].done
        stream.close()
