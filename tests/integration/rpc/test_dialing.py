"""How a channel gets from a name to a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from nereid.rpc import BackoffOptions, ChannelOptions, NotConnectedError, SocketChannel
from nereid.rpc.net.address import host_and_port
from tests.support.rpc.echo_service import Site, is_served, serving
from tests.support.waiting import until

_OPTIONS = ChannelOptions(
    connect_timeout_s=0.5, backoff=BackoffOptions(first_s=0.001, largest_s=0.001)
)


@contextlib.contextmanager
def silent(host: str, port: int) -> Iterator[None]:
    """An address that does not respond to connections: its queue is full, and nobody accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield


async def test_the_addresses_of_a_name_are_tried_in_order() -> None:
    async with serving("own", Site()) as (_, address):
        _, port = host_and_port(address)

        async def look_up(host: str) -> list[str]:
            assert host == "schedulers"
            # Of the first two one refuses, and one takes all the time that it gets.
            return ["127.0.0.3", "127.0.0.2", "127.0.0.1"]

        with silent("127.0.0.2", port):
            channel = SocketChannel(f"schedulers:{port}", _OPTIONS, look_up)
            assert await channel.unary("/test/Echo", b"x", timeout_s=30) == b"x"
            await channel.close()


async def test_a_slow_look_up_serves_a_later_dial() -> None:
    async with serving("own", Site()) as (_, address):
        _, port = host_and_port(address)
        replied = asyncio.Event()
        asked = []

        async def look_up(host: str) -> list[str]:
            asked.append(host)
            await replied.wait()
            return ["127.0.0.1"]

        channel = SocketChannel(f"schedulers:{port}", _OPTIONS, look_up)
        with pytest.raises(NotConnectedError, match=f"cannot connect to schedulers:{port}: timed"):
            await channel.unary("/test/Echo", b"x", timeout_s=30)
        replied.set()
        # Until the back-off has passed.
        await until(lambda: is_served(channel))
        assert asked == ["schedulers"]
        await channel.close()


async def test_the_last_addresss_error_is_reported() -> None:
    async def look_up(host: str) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        _, port = unused.getsockname()
        channel = SocketChannel(f"schedulers:{port}", _OPTIONS, look_up)
        with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1"):
            await channel.unary("/test/Echo", b"x", timeout_s=30)
        await channel.close()
