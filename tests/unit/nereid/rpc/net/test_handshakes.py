"""TLS handshakes: turns of the clients, and the connections that come of them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from nereid.rpc.net.handshakes import HandshakeTurns, accept_tls
from nereid.rpc.net.tls_files import Tls, TlsFiles
from tests.support.peers.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 20


async def test_clients_take_turns_that_leave_time_to_others() -> None:
    # Each message takes a whole turn.
    turns = HandshakeTurns(turn_s=0.0000001)
    events: list[str] = []
    done = asyncio.Event()

    def process(name: str) -> None:
        events.append(name)
        # Runs before the next turn.
        asyncio.get_running_loop().call_soon(events.append, "others")

    for number in range(3):
        turns.add("10.0.0.1:5", lambda number=number: process(f"greedy {number}"))  # type: ignore[misc]
    turns.add("10.0.0.2:1", lambda: process("modest"))
    discarded = turns.add("10.0.0.3:1", lambda: process("discarded"))
    turns.discard(discarded)
    turns.add("10.0.0.1:5", done.set)
    async with asyncio.timeout(LIMIT_S):
        await done.wait()
    assert events[::2] == ["greedy 0", "modest", "greedy 1", "greedy 2"]
    assert events[1::2] == ["others"] * 4


async def test_short_messages_share_a_turn() -> None:
    turns = HandshakeTurns(turn_s=60)
    events: list[str] = []
    for name in "abc":
        turns.add(f"10.0.0.1:{ord(name)}", lambda name=name: events.append(name))  # type: ignore[misc]
    assert events == []
    await asyncio.sleep(0)
    assert events == ["a", "b", "c"]


class _Echo(asyncio.Protocol):
    """Echoes; keeps what it was told."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is of no class of asyncio's.
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class _Client:
    """TLS by hand: the test says which bytes go together."""

    def __init__(self, sock: socket.socket, root: str) -> None:
        context = ssl.create_default_context(cafile=root)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.sock = sock

    def step(self) -> bytes:
        """Go on with the handshake; what is to be sent."""
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> None:
        self.incoming.write(await asyncio.get_running_loop().sock_recv(self.sock, 65536))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_of(authority: Authority) -> Tls:
    identity = authority.identity("localhost")
    return Tls(TlsFiles(cert=identity.cert, key=identity.key, alpn="h2"), server=True)


@pytest.mark.parametrize("piece_bytes", [1 << 20, 100])
async def test_what_comes_with_the_end_of_the_handshake_is_not_lost(
    authority: Authority, piece_bytes: int
) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        theirs.setblocking(False)
        protocol = _Echo()
        accepting = asyncio.create_task(
            accept_tls(lambda: protocol, theirs, "a:1", tls_of(authority), HandshakeTurns())
        )
        client = _Client(ours, authority.root)
        async with asyncio.timeout(LIMIT_S):
            hello = client.step()
            for at in range(0, len(hello), piece_bytes):
                await client.send(hello[at : at + piece_bytes])
            while not (finished := client.step()):
                await client.receive()
            client.tls.write(b"early")
            await client.send(finished + client.outgoing.read())
            await accepting
            reply = b""
            while len(reply) < 5:
                await client.receive()
                with suppress(ssl.SSLWantReadError):
                    reply += client.tls.read(100)
            assert reply == b"early"
            ours.close()
            await protocol.lost.wait()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
async def test_a_client_that_leaves_or_speaks_something_else(
    authority: Authority, said: bytes
) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ours.sendall(said)
    ours.close()
    with pytest.raises(OSError):
        async with asyncio.timeout(LIMIT_S):
            await accept_tls(_Echo, theirs, "a:1", tls_of(authority), HandshakeTurns())


async def test_a_handshake_that_is_cancelled_closes_its_connection(authority: Authority) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        theirs.setblocking(False)
        turns = HandshakeTurns()
        accepting = asyncio.create_task(accept_tls(_Echo, theirs, "a:1", tls_of(authority), turns))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        accepting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await accepting
        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.get_running_loop().sock_recv(ours, 10) == b""
