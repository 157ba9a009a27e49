"""The two ends of a call between two parts of one process, over whatever carries it.

What carries it takes no messages back: those that an end does not read wait there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from nereid.rpc.grpc.call import CALL_SLOTS, Call
from nereid.rpc.grpc.status import RpcError, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nereid.rpc.grpc.handlers import HandlerTasks, Route

    Metadata = Iterable[tuple[str, str | bytes]]


class Wire(Protocol):
    """One direction of a connection."""

    def send(self, arrive: Callable[[], None]) -> None:
        """arrive: called later, at the other end, after all that was sent before it."""


class Connection(Protocol):
    """What carries calls from a client to a server."""

    client_name: str
    server_open: bool
    server_keepalive_s: tuple[float | None, float]
    # By number; at each end those that have not ended there.
    streams: dict[int, ClientStream]
    calls: dict[int, ServerCall]

    @property
    def up(self) -> Wire: ...

    @property
    def down(self) -> Wire: ...

    @property
    def routes(self) -> Mapping[str, Route]: ...

    @property
    def tasks(self) -> HandlerTasks:
        """Of the server's handlers."""


class _Inbox:
    """What has come to one end, and waits while the end is paused."""

    __slots__ = ("_on_drained", "_paused", "_waiting", "waiting_bytes")

    def __init__(self, on_drained: Callable[[], None]) -> None:
        """on_drained: called when all that had to wait was read."""
        self._on_drained = on_drained
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._paused = False
        self.waiting_bytes = 0

    def add(self, read: Callable[[], None], size: int = 0) -> None:
        if self._paused or self._waiting:
            self._waiting.append((read, size))
            self.waiting_bytes += size
        else:
            read()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        while self._waiting and not self._paused:
            read, size = self._waiting.popleft()
            self.waiting_bytes -= size
            read()
        if not self._waiting:
            self._on_drained()


class ClientStream:
    """The client's end of a call. As nereid.rpc.StreamHandle."""

    def __init__(
        self,
        path: str,
        metadata: Metadata,
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
        deadline: float | None = None,
    ) -> None:
        self._path = path
        self._metadata = tuple(metadata)
        self._on_message = on_message
        self._on_close = on_close
        self._on_open = on_open
        self._on_writable = on_writable
        self._deadline = deadline
        self._ended = self._half_closed = False
        self._unsent: list[bytes | None] = []
        # None: there is no connection yet.
        self._connection: Connection | None = None
        self._call: ServerCall | None = None
        self._number = 0
        self._inbox = _Inbox(self._on_drained)

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def lost(self) -> bool:
        """Whether it has ended at either end."""
        return self._ended or (self._call is not None and self._call.done)

    @property
    def buffered_bytes(self) -> int:
        return 0 if self._call is None else self._call.inbox.waiting_bytes

    @property
    def unread_bytes(self) -> int:
        """Of what has come."""
        return self._inbox.waiting_bytes

    def start(self, connection: Connection, number: int) -> None:
        """There is a connection."""
        if self._ended:
            return
        self._connection, self._number = connection, number
        call = ServerCall(connection, self, number, self._path, self._metadata, self._deadline)
        self._call = call
        connection.streams[number] = self
        connection.up.send(call.open)
        for item in self._unsent:
            self._send(item)
        self._unsent.clear()

    def send(self, message: bytes) -> None:
        if not self._ended and not self._half_closed:
            self._send(message)

    def half_close(self) -> None:
        if not self._ended and not self._half_closed:
            self._half_closed = True
            self._send(None)

    def cancel(self) -> None:
        if not self._ended:
            self._end()
            if self._connection is not None and self._call is not None:
                self._connection.up.send(self._call.on_reset)

    def pause(self) -> None:
        self._inbox.pause()

    def resume(self) -> None:
        self._inbox.resume()

    def _send(self, item: bytes | None) -> None:
        if self._connection is None or self._call is None:
            self._unsent.append(item)
        else:
            call = self._call
            self._connection.up.send(lambda: call.on_item(item))

    # ---- for the other end

    def on_accepted(self) -> None:
        if self._on_open is not None and not self._ended:
            on_open, self._on_open = self._on_open, None
            on_open()

    def on_writable(self) -> None:
        if self._on_writable is not None and not self._ended:
            self._on_writable()

    def on_item(self, message: bytes) -> None:
        self._inbox.add(lambda: self._read(message), len(message))

    def on_finished(self, error: RpcError | None) -> None:
        """The server has ended the call."""
        if error is None:
            self._inbox.add(lambda: self.close(None))
        else:
            self.close(error)

    def close(self, error: RpcError | None) -> None:
        """It has ended."""
        if not self._ended:
            self._end()
            self._on_close(error)

    def _read(self, message: bytes) -> None:
        if not self._ended:
            self._on_message(message)

    def _on_drained(self) -> None:
        if self._call is not None:
            self._call.on_drained()

    def _end(self) -> None:
        self._ended = True
        if self._connection is not None:
            self._connection.streams.pop(self._number, None)


class ServerCall(Call):
    """The server's end of a call, for the handler of the call's path."""

    __slots__ = (
        *CALL_SLOTS,
        "_accepted",
        "_connection",
        "_message",
        "_number",
        "_route",
        "_stream",
        "inbox",
    )

    def __init__(
        self,
        connection: Connection,
        stream: ClientStream,
        number: int,
        path: str,
        metadata: tuple[tuple[str, str | bytes], ...],
        deadline: float | None = None,
    ) -> None:
        super().__init__(path, connection.client_name, metadata, deadline)
        # None: the server has no such method.
        self._route = connection.routes.get(path)
        self._connection = connection
        self._stream = stream
        self._number = number
        self._accepted = False
        self._message: bytes | None = None
        self.inbox = _Inbox(stream.on_writable)

    @property
    def buffered_bytes(self) -> int:
        return self._stream.unread_bytes

    @property
    def peer_is_local(self) -> bool:
        return False

    # ---- from the other end

    def open(self) -> None:
        """The request's headers have arrived."""
        if self.done or not self._connection.server_open:
            return
        self._connection.calls[self._number] = self
        if self._route is None:
            self.fail(Status.UNIMPLEMENTED, f"unknown method {self.path}")
        elif self._route.stream is not None:
            self.run_callback(self._route.stream, self)

    def on_item(self, item: bytes | None) -> None:
        """A message; None: the client's side has ended."""
        self.inbox.add(lambda: self._read(item), len(item or b""))

    def on_reset(self) -> None:
        """The client has cancelled it."""
        self._connection.calls.pop(self._number, None)
        self.cancel()

    def on_drained(self) -> None:
        """The client has read all that had to wait."""
        if self.on_writable is not None and not self.done:
            self.run_callback(self.on_writable)

    def _read(self, item: bytes | None) -> None:
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
            self._connection.tasks.spawn(self, self._route.coroutine, message)

    # ---- the handler's

    def accept(self) -> None:
        if not self.done and not self._accepted:
            self._accepted = True
            self._connection.down.send(self._stream.on_accepted)

    def send(self, message: bytes, at_once: bool = False) -> None:
        if not self.done:
            self.accept()
            stream = self._stream
            self._connection.down.send(lambda: stream.on_item(message))

    def reply(self, message: bytes) -> None:
        self.send(message)
        self.finish()

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        if not self.done:
            self.mark_done()
            self._connection.calls.pop(self._number, None)
            error = None if status == Status.OK else RpcError(status, message, trailers)
            stream = self._stream
            self._connection.down.send(lambda: stream.on_finished(error))

    def set_keepalive(self, interval_s: float | None, timeout_s: float) -> None:
        self._connection.server_keepalive_s = interval_s, timeout_s

    def pause(self) -> None:
        self.inbox.pause()

    def resume(self) -> None:
        self.inbox.resume()
