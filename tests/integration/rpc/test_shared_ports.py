"""Ports that several processes serve together; each member stands for a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from nereid.rpc.net.limits.connection_counts import ConnectionCounts
from nereid.rpc.net.limits.shared_accepts import ConnectionShare
from nereid.rpc.net.listener import Listener, listen
from nereid.rpc.net.shared_ports import InheritedPort, InheritedPorts, SharedPorts
from nereid.rpc.net.tls_files import Tls, TlsFiles
from tests.support.peers.certificates import Authority
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LIMIT_S = 20


def inherited(ports: SharedPorts, member: int) -> InheritedPorts:
    """As in a process that was started with copies of the descriptors."""
    description = ports.description(member)
    description["counts"] = os.dup(description["counts"])
    names = description["ports"]
    description["ports"] = {name: list(map(os.dup, names[name])) for name in names}
    return InheritedPorts(description)


class Member:
    """Serves the port p: accepts, and replies with its number."""

    def __init__(self, ports: SharedPorts, number: int) -> None:
        self.ports = inherited(ports, number)
        self.number = number
        self.counts = ConnectionCounts("test", None, None)
        self.listener: Listener | None = None

    @property
    def port(self) -> InheritedPort:
        port = self.ports.get("p")
        assert port is not None
        return port

    @property
    def share(self) -> ConnectionShare:
        assert self.port.share is not None
        return self.port.share

    async def serve(self, address: str, tls: Tls | None = None) -> None:
        self.listener = await listen(
            lambda: _Greeting(self), address, self.counts, tls=tls, inherited=self.port
        )

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        else:
            for each in self.port.sockets:
                each.close()


class _Greeting(asyncio.Protocol):
    def __init__(self, member: Member) -> None:
        self.member = member

    def connection_made(self, transport: Any) -> None:
        secure = transport.get_extra_info("ssl_object") is not None
        self.member.counts.add("", after_handshake=secure)
        transport.write(b"%d" % self.member.number)

    def connection_lost(self, exc: Exception | None) -> None:
        self.member.counts.remove("")


@pytest.fixture
async def ports() -> AsyncIterator[SharedPorts]:
    made = SharedPorts(2)
    yield made
    made.close()


def sync_socket(address: str) -> socket.socket:
    """A connection that need not have been accepted."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address[5:])
    else:
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    return sock


@contextlib.asynccontextmanager
async def connected(address: str, count: int, **tls: Any) -> AsyncIterator[list[int]]:
    """So many connections, open at once; the members that they are to."""
    writers, members = [], []
    for _ in range(count):
        if address.startswith("unix:"):
            reader, writer = await asyncio.open_unix_connection(address[5:])
        else:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), **tls)
        members.append(int(await asyncio.wait_for(reader.readexactly(1), LIMIT_S)))
        writers.append(writer)
    yield members
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
async def test_connections_are_spread_evenly(ports: SharedPorts, kind: str, tmp_path: Path) -> None:
    asked = f"unix:{tmp_path}/s" if kind == "unix" else "127.0.0.1:0"
    address = await ports.bind("p", asked)
    server, client = None, {}
    if kind == "tls":
        authority = Authority(tmp_path)
        identity = authority.identity("localhost")
        server = Tls(
            TlsFiles(cert=identity.cert, key=identity.key, root="", alpn="h2"), server=True
        )
        client = {
            "ssl": ssl.create_default_context(cafile=authority.root),
            "server_hostname": "localhost",
        }
    members = [Member(ports, number) for number in range(2)]
    for each in members:
        await each.serve(address, server)
    async with connected(address, 8, **client) as reached:
        assert sorted(reached) == [0] * 4 + [1] * 4
    await until(lambda: [each.share.should_accept() for each in members] == [True, True])
    for each in members:
        each.close()


async def test_a_member_that_does_not_accept_is_not_waited_for(ports: SharedPorts) -> None:
    address = await ports.bind("p", "127.0.0.1:0")
    working, hung = Member(ports, 0), Member(ports, 1)
    await working.serve(address)
    hung.share.set_open(0)
    async with connected(address, 8) as reached:
        assert reached == [0] * 8
    ports.on_member_ended(1)
    assert working.share.should_accept()
    working.close()
    hung.close()


async def test_a_port_is_taken_and_refuses_until_a_member_listens(ports: SharedPorts) -> None:
    address = await ports.bind("p", "127.0.0.1:0")
    where = ("127.0.0.1", int(address.rpartition(":")[2]))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)
    member = Member(ports, 0)
    await member.serve(address)
    other = SharedPorts(1)
    with pytest.raises(OSError, match="in use"):
        await other.bind("p", address)
    other.close()
    ports.close()
    async with connected(address, 1):
        pass
    member.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)


async def test_a_unix_socket_is_removed_at_the_end(tmp_path: Path) -> None:
    ports = SharedPorts(2)
    path = tmp_path / "s"
    address = await ports.bind("p", f"unix:{path}")
    members = [Member(ports, number) for number in range(2)]
    for each in members:
        await each.serve(address)
    members[0].close()
    assert path.exists()
    async with connected(address, 2) as reached:
        assert reached == [1, 1]
    members[1].close()
    ports.close()
    assert not path.exists()


@pytest.fixture
async def lone() -> AsyncIterator[SharedPorts]:
    """The ports of one member alone."""
    made = SharedPorts(1)
    yield made
    made.close()


async def restarted(ports: SharedPorts, address: str) -> Member:
    """The next member, as soon as it serves."""
    member = Member(ports, 0)
    await member.ports.await_members(0)
    await member.serve(address)
    return member


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_what_connects_between_two_members_is_for_the_next(
    lone: SharedPorts, kind: str, tmp_path: Path
) -> None:
    address = await lone.bind("p", f"unix:{tmp_path}/s" if kind == "unix" else "127.0.0.1:0")
    member = await restarted(lone, address)
    async with connected(address, 1):
        pass
    member.close()
    lone.on_member_ended(0)
    with sync_socket(address) as waiting:
        member = await restarted(lone, address)
        loop = asyncio.get_running_loop()
        assert await asyncio.wait_for(loop.sock_recv(waiting, 1), LIMIT_S) == b"0"
    # One serves: nothing is refused.
    lone.refuse_unserved()
    async with connected(address, 1):
        pass
    member.close()


@pytest.mark.parametrize("port", ["127.0.0.1:0", "localhost:0"])
async def test_connections_that_wait_too_long_are_refused_until_a_member_is_back(
    lone: SharedPorts, port: str
) -> None:
    address = await lone.bind("p", port)
    member = await restarted(lone, address)
    member.close()
    lone.on_member_ended(0)
    with sync_socket(address) as waiting:
        lone.refuse_unserved()
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(loop.sock_recv(waiting, 1), LIMIT_S)
    with pytest.raises(ConnectionRefusedError):
        sync_socket(address)
    member = await restarted(lone, address)
    async with connected(address, 2) as reached:
        assert reached == [0, 0]
    member.close()


async def test_a_port_that_others_serve_as_well_is_left_to_them_at_once(lone: SharedPorts) -> None:
    address = await lone.bind("p", "127.0.0.1:0", reuse_port=True)
    member = await restarted(lone, address)
    member.close()
    other = SharedPorts(1)
    await other.bind("p", address, reuse_port=True)
    serving = await restarted(other, address)
    lone.on_member_ended(0)
    async with connected(address, 16) as reached:
        assert reached == [0] * 16
    serving.close()
    other.close()


async def test_members_wait_for_each_other(ports: SharedPorts) -> None:
    first, second = inherited(ports, 0), inherited(ports, 1)
    waiting = asyncio.create_task(first.await_members(LIMIT_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    await second.await_members(LIMIT_S)
    await asyncio.wait_for(waiting, LIMIT_S)
    ports.on_member_ended(0)
    await second.await_members(0.01)
