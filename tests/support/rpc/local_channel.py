"""A channel within one process and event loop, without a socket, for tests.

Messages are delivered in the loop's next turn, so a handler never runs inside its caller.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nereid.rpc.grpc.call import CALL_SLOTS, Call
from nereid.rpc.grpc.channel import unary_over
from nereid.rpc.grpc.handlers import HandlerTasks, routes_of
from nereid.rpc.grpc.status import RpcError, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.rpc.grpc.handlers import Handlers, Route


class _Pipe:
    __slots__ = ("_bytes", "_deliver", "_items", "_loop", "_on_drained", "_paused", "_scheduled")

    def __init__(
        self, deliver: Callable[[bytes | None], None], on_drained: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._on_drained = on_drained
        # `None` stands for the end.
        self._items: deque[bytes | None] = deque()
        self._bytes = 0
        self._paused = False
        self._scheduled = False

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def push(self, item: bytes | None) -> None:
        self._items.append(item)
        self._bytes += len(item) if item is not None else 0
        self._schedule()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._schedule()

    def clear(self) -> None:
        self._items.clear()
        self._bytes = 0

    def _schedule(self) -> None:
        if self._items and not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        while self._items and not self._paused:
            item = self._items.popleft()
            self._bytes -= len(item) if item is not None else 0
            self._deliver(item)
        if not self._items:
            self._on_drained()


class _Request(NamedTuple):
    path: str
    metadata: tuple[tuple[str, str | bytes], ...]
    deadline: float | None = None


class RoutedCall(Call):
    """Server's end of a call whose messages arrive whole, for the handler of the call's path."""

    __slots__ = (*CALL_SLOTS, "_accepted", "_message", "_route")

    def __init__(
        self,
        path: str,
        peer: str,
        metadata: tuple[tuple[str, str | bytes], ...],
        route: Route | None,
        deadline: float | None = None,
    ) -> None:
        """Create a call; `route` is None if the server has no such method."""
        super().__init__(path, peer, metadata, deadline)
        self._accepted = False
        self._message: bytes | None = None
        self._route = route

    def open(self) -> None:
        """Start the call's handler, because the headers of the request have arrived."""
        if self.done:
            return
        if self._route is None:
            self.fail(Status.UNIMPLEMENTED, f"unknown method {self.path}")
        elif self._route.stream is not None:
            self.run_callback(self._route.stream, self)

    def on_item(self, item: bytes | None, tasks: HandlerTasks) -> None:
        """Handle a message of the client; None means that the client's side has ended."""
        if self.done or self._route is None:
            return
        if self._route.stream is not None:
            if item is None:
                if self.on_half_close is not None:
                    self.run_callback(self.on_half_close)
            elif self.on_message is not None:
                self.run_callback(self.on_message, item)
            return
        if item is not None:
            self._message = item
            return
        # Drop the message now: call and stream form a reference cycle, which would keep it.
        message, self._message = self._message, None
        if message is None:
            self.fail(Status.UNIMPLEMENTED, "no request message")
        elif self._route.unary is not None:
            self.run_callback(self._route.unary, self, message)
        elif self._route.coroutine is not None:
            tasks.spawn(self, self._route.coroutine, message)

    def reply(self, message: bytes) -> None:
        """Send the response and end the call with OK."""
        self.send(message)
        self.finish()


class LocalCall(RoutedCall):
    """Server's end of a call within the process."""

    __slots__ = ("_stream", "_tasks", "down")

    def __init__(
        self,
        request: _Request,
        route: Route | None,
        tasks: HandlerTasks,
        stream: LocalStream,
    ) -> None:
        super().__init__(request.path, "local", request.metadata, route, request.deadline)
        self._tasks = tasks
        self._stream = stream
        self.down = _Pipe(stream.on_item, self._on_drained)

    @property
    def buffered_bytes(self) -> int:
        """Sent bytes that have not been passed to the client's end yet."""
        return self.down.waiting_bytes

    def accept(self) -> None:
        """Tell the client's end that the stream is open."""
        if not self.done and not self._accepted:
            self._accepted = True
            self._stream.on_accepted()

    def send(self, message: bytes, at_once: bool = False) -> None:
        """Send one message. The stream is accepted before the first one."""
        if not self.done:
            self.accept()
            self.down.push(message)

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """End the call with a status and trailers."""
        if not self.done:
            self.mark_done()
            self._stream.set_outcome(
                None if status == Status.OK else RpcError(status, message, trailers)
            )
            self.down.push(None)

    def pause(self) -> None:
        """Stop the delivery of the client's messages."""
        self._stream.up.pause()

    def resume(self) -> None:
        """Continue the delivery of the client's messages after pause()."""
        self._stream.up.resume()

    def receive(self, item: bytes | None) -> None:
        """Handle a message of the client; None means that the client's side has ended."""
        self.on_item(item, self._tasks)

    def _on_drained(self) -> None:
        if self.on_writable is not None:
            self.run_callback(self.on_writable)


class LocalStream:
    """Client's end of a call within the process."""

    __slots__ = (
        "_done",
        "_half_closed",
        "_on_close",
        "_on_done",
        "_on_message",
        "_on_open",
        "_on_writable",
        "_outcome",
        "call",
        "up",
    )

    def __init__(
        self,
        request: _Request,
        route: Route | None,
        tasks: HandlerTasks,
        on_done: Callable[[LocalStream], None],
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None,
        on_writable: Callable[[], None] | None,
    ) -> None:
        """Create both ends of a call; `on_done` is called when the call ends for any reason."""
        self._on_done = on_done
        self._on_open = on_open
        self._on_writable = on_writable
        self._on_message = on_message
        self._on_close = on_close
        self._outcome: RpcError | None = None
        self._done = False
        self._half_closed = False
        self.call = LocalCall(request, route, tasks, self)
        self.up = _Pipe(self.call.receive, self._on_drained)

    @property
    def buffered_bytes(self) -> int:
        """Sent bytes that have not been passed to the server's end yet."""
        return self.up.waiting_bytes

    def send(self, message: bytes) -> None:
        """Send one message; no-op after half_close() or the end."""
        if not self._done and not self._half_closed:
            self.up.push(message)

    def half_close(self) -> None:
        """End the client's side after the messages that were sent."""
        if not self._done and not self._half_closed:
            self._half_closed = True
            self.up.push(None)

    def cancel(self) -> None:
        """Cancel the call. No callback is called after this."""
        if not self._done:
            self._finish()
            asyncio.get_running_loop().call_soon(self.call.cancel)

    def pause(self) -> None:
        """Stop the delivery of the server's messages."""
        self.call.down.pause()

    def resume(self) -> None:
        """Continue the delivery of the server's messages after pause()."""
        self.call.down.resume()

    def on_accepted(self) -> None:
        """Tell the owner, in the next turn, that the server has accepted the stream."""
        if self._on_open is not None and not self._done:
            asyncio.get_running_loop().call_soon(self._opened)

    def set_outcome(self, outcome: RpcError | None) -> None:
        """Set the error with which the stream ends; None for OK."""
        self._outcome = outcome

    def on_item(self, item: bytes | None) -> None:
        """Deliver a message of the server; None closes the stream."""
        if self._done:
            return
        if item is not None:
            self._on_message(item)
            return
        self._finish()
        self.call.cancel()
        # Avoid a reference cycle: the error's traceback refers to frames that refer to the stream.
        outcome, self._outcome = self._outcome, None
        self._on_close(outcome)

    def _opened(self) -> None:
        if self._on_open is not None and not self._done:
            self._on_open()

    def _finish(self) -> None:
        self._done = True
        self._on_done(self)
        self.up.clear()
        self.call.down.clear()
        self._on_open = self._on_writable = None

    def _on_drained(self) -> None:
        if self._on_writable is not None:
            self._on_writable()


class LocalChannel:
    """Channel to handlers of this process. It belongs to one event loop."""

    def __init__(self, handlers: Handlers) -> None:
        self._routes = routes_of(handlers)
        self._tasks = HandlerTasks()
        self._streams: set[LocalStream] = set()
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
        request = _Request(path, tuple(metadata), deadline)
        return await unary_over(partial(self._open, request), message, timeout_s)

    def stream(
        self,
        path: str,
        *,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
    ) -> LocalStream:
        """Open a bidirectional stream; see Channel.stream."""
        request = _Request(path, tuple(metadata))
        return self._open(request, on_message, on_close, on_open, on_writable)

    async def close(self) -> None:
        """End all streams with UNAVAILABLE, and cancel the handlers' tasks."""
        self._closed = True
        for stream in list(self._streams):
            stream.set_outcome(RpcError(Status.UNAVAILABLE, "the channel is closed"))
            stream.on_item(None)
        await self._tasks.close()

    def _open(
        self,
        request: _Request,
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
    ) -> LocalStream:
        route, on_done = self._routes.get(request.path), self._streams.discard
        callbacks = on_done, on_message, on_close, on_open, on_writable
        stream = LocalStream(request, route, self._tasks, *callbacks)
        if self._closed:
            stream.call.fail(Status.UNAVAILABLE, "the channel is closed")
        else:
            self._streams.add(stream)
            asyncio.get_running_loop().call_soon(stream.call.open)
        return stream
