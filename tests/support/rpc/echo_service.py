"""A small service with one method of every kind, served by either engine, to test nereid.rpc."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nereid.rpc import (
    BlockingStream,
    Call,
    Handlers,
    RpcError,
    Server,
    ServerOptions,
    SocketChannel,
    Status,
)
from nereid.rpc.grpcio_engine import GrpcioServer
from nereid.rpc.net.tls_files import Tls

# More than any window or buffer takes at once.
BIG = bytes(range(256)) * 80_000
ENGINES: dict[str, type[Server | GrpcioServer]] = {"own": Server, "grpcio": GrpcioServer}
LIMIT_S = 20


@dataclass
class Site:
    """The handlers, and what they saw."""

    calls: list[Call] = field(default_factory=list)
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    half_closed: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[bytes] = field(default_factory=list)

    def handlers(self) -> Handlers:
        return Handlers(
            unary={
                "/test/Echo": self.echo,
                "/test/Hold": self.hold,
                "/test/Refuse": self.refuse,
                "/test/Break": self.broken,
            },
            async_unary={
                "/test/Later": self.later,
                "/test/BreakLater": self.broken_later,
                "/test/Never": self.never,
            },
            stream={
                "/test/Chat": self.chat,
                "/test/Count": self.count,
                "/test/Open": self.open,
                "/test/Sink": self.sink,
            },
            compressible=frozenset({"/test/Echo"}),
        )

    def _keep(self, call: Call) -> None:
        self.calls.append(call)
        self.seen.set()
        call.on_cancel = self.cancelled.set

    def echo(self, call: Call, message: bytes) -> None:
        self._keep(call)
        call.reply(message)

    def hold(self, call: Call, message: bytes) -> None:
        self._keep(call)

    def refuse(self, call: Call, message: bytes) -> None:
        raise RpcError(
            Status.FAILED_PRECONDITION,
            "nicht möglich: 100 % ✓\n",
            (("why", "because"), ("why-bin", b"\x00\xff")),
        )

    def broken(self, call: Call, message: bytes) -> None:
        raise KeyError("a secret")

    async def broken_later(self, call: Call, message: bytes) -> bytes:
        raise KeyError("a secret")

    async def later(self, call: Call, message: bytes) -> bytes:
        await asyncio.sleep(0)
        return message[::-1]

    async def never(self, call: Call, message: bytes) -> bytes:
        self.seen.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return b""

    def chat(self, call: Call) -> None:
        """Echoes every message, finishes when the client does."""
        self._keep(call)
        call.on_message = call.send
        call.on_half_close = call.finish

    def count(self, call: Call) -> None:
        """Send as many messages as the request asks for, then an error when the number is odd."""
        self._keep(call)

        def on_message(message: bytes) -> None:
            number = int(message)
            for each in range(number):
                call.send(b"%d" % each)
            if number % 2:
                call.fail(Status.ABORTED, "odd")
            else:
                call.finish(trailers=(("count", str(number)),))

        call.on_message = on_message

    def open(self, call: Call) -> None:
        """Accepts and keeps silent."""
        self._keep(call)
        call.accept()
        call.on_message = self.messages.append
        call.on_half_close = self.half_closed.set

    def sink(self, call: Call) -> None:
        """Reads everything, replies with its size when the client is done."""
        self._keep(call)
        sizes: list[int] = []
        call.on_message = lambda message: sizes.append(len(message))

        def done() -> None:
            call.send(b"%d" % sum(sizes))
            call.finish()

        call.on_half_close = done


@asynccontextmanager
async def serving(
    engine: str,
    site: Site,
    address: str = "127.0.0.1:0",
    options: ServerOptions | None = None,
    tls: Tls | None = None,
) -> AsyncIterator[tuple[Server | GrpcioServer, str]]:
    server: Server | GrpcioServer = ENGINES[engine](site.handlers(), options or ServerOptions())
    real = await server.listen(address, tls)
    try:
        yield server, real
    finally:
        await server.close()


async def is_served(channel: SocketChannel) -> bool:
    """Return whether a call succeeds now: there may be no server yet, or a back-off."""
    with contextlib.suppress(RpcError):
        return await channel.unary("/test/Echo", b"x") == b"x"
    return False


def poll_messages(stream: BlockingStream) -> list[bytes]:
    """Return what comes next on a stream whose owner polls."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    messages: list[bytes] = []
    while not messages and not stream.ended:
        if not stream.has_input:
            assert poll.poll(10_000)
        messages = stream.read_messages()
    return messages
