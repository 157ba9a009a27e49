"""A channel within one process and event loop, without a socket, for tests.

Messages are delivered in the loop's next turn, so a handler never runs inside its caller.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nereid.rpc.grpc.channel import unary_over
from nereid.rpc.grpc.handlers import HandlerTasks, routes_of
from nereid.rpc.grpc.status import RpcError, Status
from tests.support.rpc.call_ends import ClientStream, ServerCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.rpc.grpc.handlers import Handlers


class _NextTurn:
    """A Wire."""

    def send(self, arrive: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(arrive)


class LocalChannel:
    """Channel to handlers of this process. It belongs to one event loop, and is a Connection."""

    client_name = "local"
    server_open = True

    def __init__(self, handlers: Handlers) -> None:
        self.up = self.down = _NextTurn()
        self.routes = routes_of(handlers)
        self.tasks = HandlerTasks()
        self.streams: dict[int, ClientStream] = {}
        self.calls: dict[int, ServerCall] = {}
        self.server_keepalive_s: tuple[float | None, float] = (None, 0.0)
        self._numbers = 0
        self._closed = False

    async def unary(
        self,
        path: str,
        message: bytes,
        *,
        timeout_s: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> bytes:
        """Make a unary call; raise RpcError for a status other than OK."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def open_stream(
            on_message: Callable[[bytes], None], on_close: Callable[[RpcError | None], None]
        ) -> ClientStream:
            stream = ClientStream(path, metadata, on_message, on_close, deadline=deadline)
            return self._start(stream)

        return await unary_over(open_stream, message, timeout_s)

    def stream(
        self,
        path: str,
        *,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
    ) -> ClientStream:
        """Open a bidirectional stream; see Channel.stream."""
        callbacks = on_message, on_close, on_open, on_writable
        return self._start(ClientStream(path, metadata, *callbacks))

    async def close(self) -> None:
        """End all streams with UNAVAILABLE, and cancel the handlers' tasks."""
        self._closed = True
        calls = list(self.calls.values())
        for stream in list(self.streams.values()):
            stream.close(_closed())
        for call in calls:
            call.on_reset()
        await self.tasks.close()

    def _start(self, stream: ClientStream) -> ClientStream:
        if self._closed:
            asyncio.get_running_loop().call_soon(stream.close, _closed())
        else:
            self._numbers += 1
            stream.start(self, self._numbers)
        return stream


def _closed() -> RpcError:
    return RpcError(Status.UNAVAILABLE, "the channel is closed")
