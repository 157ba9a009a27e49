"""The two ends of a call over a connection of the simulated network."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nereid.rpc.grpc.status import RpcError, Status
from tests.support.rpc.local_channel import RoutedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.simulation.network import Connection

    Metadata = Iterable[tuple[str, str | bytes]]


class ClientStream:
    """The client's end of a call. As nereid.rpc.StreamHandle."""

    buffered_bytes = 0

    def __init__(
        self,
        path: str,
        metadata: Metadata,
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        deadline: float | None = None,
    ) -> None:
        self._path = path
        self._metadata = tuple(metadata)
        self._on_message = on_message
        self._on_close = on_close
        self._on_open = on_open
        self._deadline = deadline
        self._ended = self._half_closed = False
        self._unsent: list[bytes | None] = []
        # None: there is no connection yet.
        self._connection: Connection | None = None
        self._call: ServerCall | None = None
        self._number = 0
        # While it is paused: what has come.
        self._unread: deque[Callable[[], None]] | None = None

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def lost(self) -> bool:
        """Whether it has ended at either end."""
        return self._ended or (self._call is not None and self._call.done)

    def start(self, connection: Connection, number: int) -> None:
        """There is a connection."""
        if self._ended:
            return
        self._connection, self._number = connection, number
        call = self._call = ServerCall(connection, self, number, self._path, self._metadata)
        call.deadline = self._deadline
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
        if self._unread is None:
            self._unread = deque()

    def resume(self) -> None:
        unread, self._unread = self._unread, None
        for arrive in unread or ():
            arrive()

    def _send(self, item: bytes | None) -> None:
        if self._connection is None or self._call is None:
            self._unsent.append(item)
        else:
            call, tasks = self._call, self._connection.listener.tasks
            self._connection.up.send(lambda: call.on_item(item, tasks))

    # ---- for the other end

    def on_accepted(self) -> None:
        if self._on_open is not None and not self._ended:
            on_open, self._on_open = self._on_open, None
            on_open()

    def on_item(self, message: bytes) -> None:
        if self._unread is not None:
            self._unread.append(lambda: self.on_item(message))
        elif not self._ended:
            self._on_message(message)

    def close(self, error: RpcError | None) -> None:
        """It has ended."""
        if self._unread is not None and error is None:
            self._unread.append(lambda: self.close(error))
        elif not self._ended:
            self._end()
            self._on_close(error)

    def _end(self) -> None:
        self._ended = True
        if self._connection is not None:
            self._connection.streams.pop(self._number, None)


class ServerCall(RoutedCall):
    """The server's end of a call."""

    __slots__ = ("_connection", "_number", "_stream")

    def __init__(
        self,
        connection: Connection,
        stream: ClientStream,
        number: int,
        path: str,
        metadata: tuple[tuple[str, str | bytes], ...],
    ) -> None:
        route = connection.listener.routes.get(path)
        super().__init__(path, connection.client.name, metadata, route)
        self._connection = connection
        self._stream = stream
        self._number = number

    # Sending takes no time, and what a client does not read waits there.
    @property
    def buffered_bytes(self) -> int:
        return 0

    @property
    def peer_is_local(self) -> bool:
        return False

    # ---- from the other end

    def open(self) -> None:
        """The request's headers have arrived."""
        connection = self._connection
        if not connection.server_open:
            return
        connection.calls[self._number] = self
        super().open()

    def on_reset(self) -> None:
        """The client has cancelled it."""
        self._connection.calls.pop(self._number, None)
        self.cancel()

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
            self._connection.down.send(lambda: stream.close(error))

    def set_keepalive(self, interval_s: float | None, timeout_s: float) -> None:
        self._connection.server_keepalive_s = interval_s, timeout_s

    def pause(self) -> None:
        """Nobody uses it."""

    def resume(self) -> None:
        """As pause."""
