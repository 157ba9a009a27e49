"""What only our own server has: aged and silent connections, stale sockets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from nereid.rpc import BlockingStream, RpcError, ServerOptions, SocketChannel
from tests.support.rpc.echo_service import Site, serving
from tests.support.waiting import soon, until


@pytest.fixture
async def site() -> Site:
    return Site()


async def test_aged_connections_are_replaced_and_no_call_is_lost(site: Site) -> None:
    options = ServerOptions(
        max_connection_age_s=0.05, keepalive_interval_s=0.05, keepalive_timeout_s=5
    )
    async with serving("own", site, options=options) as (_, address):
        channel = SocketChannel(address)
        held = asyncio.ensure_future(channel.unary("/test/Hold", b"x"))
        await soon(site.seen)
        async with asyncio.timeout(10):
            while len({call.peer for call in site.calls}) < 3:
                assert await channel.unary("/test/Later", b"ab") == b"ba"
                assert await channel.unary("/test/Echo", b"ab") == b"ab"
        site.calls[0].reply(b"still")
        assert await held == b"still"
        await channel.close()


async def test_calls_on_an_aged_connection_are_cut_when_their_grace_is_over(site: Site) -> None:
    options = ServerOptions(
        max_connection_age_s=0.05,
        max_connection_age_grace_s=0.1,
        keepalive_interval_s=0.05,
        keepalive_timeout_s=5,
    )
    async with serving("own", site, options=options) as (_, address):
        channel = SocketChannel(address)
        with pytest.raises((RpcError, OSError)):
            await asyncio.wait_for(channel.unary("/test/Hold", b"x"), 10)
        await channel.close()


async def test_a_client_that_never_sends_is_cut_off(site: Site) -> None:
    options = ServerOptions(keepalive_interval_s=0.05, greeting_timeout_s=0.05)
    async with serving("own", site, options=options) as (_, address):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.wait_for(reader.read(1 << 16), 10)
        with pytest.raises((ConnectionError, AssertionError)):
            assert await asyncio.wait_for(reader.read(1 << 16), 10)
        writer.close()


async def test_a_stale_socket_is_replaced_and_one_in_use_is_not(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    async with serving("own", site, f"unix:{path}") as (_, address):
        with pytest.raises(OSError, match="in use"):
            async with serving("own", site, address):
                pass
        channel = SocketChannel(address)
        assert await channel.unary("/test/Echo", b"x") == b"x"
        await channel.close()
    assert not path.exists()
    path.write_text("no socket")
    with pytest.raises(OSError, match="."):  # noqa: RUF043 (any text)
        async with serving("own", site, f"unix:{path}"):
            pass
    assert path.read_text() == "no socket"


async def test_several_processes_may_share_a_port(site: Site) -> None:
    options = ServerOptions(reuse_port=True)
    async with (
        serving("own", site, options=options) as (_, address),
        serving("own", site, address, options) as (_, same),
    ):
        assert same == address


async def test_a_peer_that_does_not_read_delays_only_its_own_responses(site: Site) -> None:
    async with serving("own", site) as (_, address):
        stalled = await asyncio.to_thread(BlockingStream, address, "/test/Open", timeout_s=10)
        await soon(site.seen)
        call = site.calls[0]
        for _ in range(50):
            call.send(bytes(1_000_000))
        await asyncio.sleep(0)
        assert call.buffered_bytes > 40_000_000
        channel = SocketChannel(address)
        assert await channel.unary("/test/Echo", b"x") == b"x"
        await channel.close()
        stalled.close()
        await until(lambda: call.done)
        assert call.buffered_bytes == 0


async def test_the_server_keeps_deadlines_by_itself(site: Site) -> None:
    """A client that forgets its own deadline gets DEADLINE_EXCEEDED."""
    async with serving("own", site) as (_, address):
        channel = SocketChannel(address)
        errors: list[RpcError | None] = []
        for text in ("80m", "40m", "40m", "60S"):
            channel.stream(
                "/test/Open",
                metadata=(("grpc-timeout", text),),
                on_message=lambda _: None,
                on_close=errors.append,
            )
        await until(lambda: len(errors) == 3)
        assert {error.status.name for error in errors if error} == {"DEADLINE_EXCEEDED"}
        assert site.cancelled.is_set()
        assert [call.done for call in site.calls] == [True, True, True, False]
        await channel.close()


async def test_a_message_may_leave_before_the_turn_is_over(site: Site) -> None:
    async with serving("own", site) as (_, address):
        stream = await asyncio.to_thread(BlockingStream, address, "/test/Open", timeout_s=10)
        await soon(site.seen)
        (call,) = site.calls
        # No turn of the event loop passes between these.
        call.send(b"later")
        assert stream.read_messages() == []
        call.send(b"now", at_once=True)
        assert stream.read_messages() == [b"later", b"now"]
        call.send(b"last")
        assert stream.read_messages() == []
        assert await asyncio.to_thread(stream.receive) == b"last"
        large = b"x" * 100_000
        call.send(large, at_once=True)
        assert await asyncio.to_thread(stream.receive) == large
        await asyncio.to_thread(stream.close)


async def test_what_is_sent_while_reading_leaves_at_once_as_well(site: Site) -> None:
    async with serving("own", site) as (_, address):
        stream = await asyncio.to_thread(BlockingStream, address, "/test/Open", timeout_s=10)
        await soon(site.seen)
        (call,) = site.calls
        found: list[list[bytes]] = []

        def on_message(message: bytes) -> None:
            call.send(message, at_once=True)
            found.append(stream.read_messages())
            call.send(message)
            found.append(stream.read_messages())

        call.on_message = on_message
        # Its lock is not held while the handler reads.
        stream._stream.send(b"ab")
        stream._flush()
        while not found:
            await asyncio.sleep(0)
        assert found == [[b"ab"], []]
        assert await asyncio.to_thread(stream.receive) == b"ab"
        await asyncio.to_thread(stream.close)
