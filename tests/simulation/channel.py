"""How processes of a simulated mesh call each other: as nereid.rpc.SocketChannel does, and as the
threads of instances do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.grpc.channel import unary_over
from nereid.rpc.grpc.status import NotConnectedError, RpcError, Status
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from tests.simulation.network import KEEPALIVE_S, LATENCY_S, Connection
from tests.support.rpc.call_ends import ClientStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.network import Network
    from tests.simulation.processes import Process
    from tests.support.rpc.call_ends import Metadata

_CONNECT_TIMEOUT_S: Final = 5.0
# When a host that does not reply is tried again, as TCP does.
_DIALS_S: Final = (1.0, 3.0)
_BACKOFF: Final = BackoffOptions()


class SimulatedChannel:
    """Calls to one address, over one connection that is dialled on demand. As
    nereid.rpc.SocketChannel.
    """

    def __init__(
        self,
        network: Network,
        process: Process,
        address: str,
        *,
        keepalive_s: tuple[float, float] = KEEPALIVE_S,
        backoff: BackoffOptions = _BACKOFF,
    ) -> None:
        self._network = network
        self._loop = network.loop
        self._process = process
        self._address = address
        self._keepalive_s = keepalive_s
        self._backoff = Backoff(backoff, network.random)
        self._queue: list[ClientStream] = []
        self._numbers = 0
        self.connection: Connection | None = None
        self._dialing = False
        self._not_before_s = 0.0
        self._last_error = ""
        self._closed = False

    async def unary(
        self,
        path: str,
        message: bytes,
        *,
        timeout_s: float | None = None,
        metadata: Metadata = (),
    ) -> bytes:
        deadline = None if timeout_s is None else self._loop.time() + timeout_s

        def open_stream(
            on_message: Callable[[bytes], None], on_close: Callable[[RpcError | None], None]
        ) -> ClientStream:
            stream = ClientStream(path, metadata, on_message, on_close, deadline=deadline)
            self._submit(stream)
            return stream

        return await unary_over(open_stream, message, timeout_s)

    def stream(
        self,
        path: str,
        *,
        metadata: Metadata = (),
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
    ) -> ClientStream:
        stream = ClientStream(path, metadata, on_message, on_close, on_open, on_writable)
        self._submit(stream)
        return stream

    async def close(self) -> None:
        self.end()

    def end(self, *, lossy: bool = False) -> None:
        """As close."""
        self._closed = True
        self._fail_queue(RpcError(Status.UNAVAILABLE, "the channel is closed"))
        if self.connection is not None:
            self.connection.close_at_client(lossy=lossy)

    # ---- inside

    def _submit(self, stream: ClientStream) -> None:
        if self.connection is not None:
            self._start(stream)
        elif self._closed:
            self._refuse(stream, "the channel is closed")
        elif not self._dialing and self._loop.time() < self._not_before_s:
            self._refuse(stream, self._last_error)
        else:
            self._queue.append(stream)
            if not self._dialing:
                self._dialing = True
                self._dial(0)

    def _refuse(self, stream: ClientStream, why: str) -> None:
        error = NotConnectedError(Status.UNAVAILABLE, why)
        self._loop.call_soon(stream.close, error)

    def _start(self, stream: ClientStream) -> None:
        assert self.connection is not None, "a stream without a connection"
        self._numbers += 1
        stream.start(self.connection, self._numbers)

    def _dial(self, attempt: int) -> None:
        """Send what asks for a connection."""
        trip_s = 2 * self._network.random.uniform(*LATENCY_S)
        self._loop.call_later(trip_s, self._on_dialled, attempt)

    def _on_dialled(self, attempt: int) -> None:
        self._dialing = not self._closed
        if self._closed:
            return
        listener = self._network.listener(self._address)
        here = self._process.name
        there = "" if listener is None else listener.process.name
        if self._network.is_blocked((here, there)) or self._network.is_blocked((there, here)):
            if attempt < len(_DIALS_S):
                self._loop.call_later(_DIALS_S[attempt], self._dial, attempt + 1)
            else:
                left_s = _CONNECT_TIMEOUT_S - sum(_DIALS_S)
                self._loop.call_later(left_s, self._on_dial_failed, "timed out")
        elif listener is None:
            self._on_dial_failed("connection refused")
        else:
            self._dialing = False
            self._backoff.succeeded()
            self.connection = Connection(
                self._network, self._process, listener, self._keepalive_s, self._on_lost
            )
            queue, self._queue = self._queue, []
            for stream in queue:
                if not stream.ended:
                    self._start(stream)

    def _on_dial_failed(self, why: str) -> None:
        self._dialing = False
        self._not_before_s = self._loop.time() + self._backoff.next_delay_s()
        self._last_error = f"cannot connect to {self._address}: {why}"
        self._fail_queue(NotConnectedError(Status.UNAVAILABLE, self._last_error))

    def _fail_queue(self, error: RpcError) -> None:
        queue, self._queue = self._queue, []
        for stream in queue:
            stream.close(error)

    def _on_lost(self) -> None:
        self.connection = None


class Stream:
    """An executor's stream, on a connection of its own."""

    def __init__(
        self,
        network: Network,
        process: Process,
        address: str,
        path: str,
        metadata: Metadata,
        on_message: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> None:
        self._channel = SimulatedChannel(network, process, address)
        self._on_close = on_close
        self._stream = self._channel.stream(
            path, metadata=metadata, on_message=on_message, on_close=self._close
        )
        self._connected: Connection | None = None
        # Why it has ended; None: it has not, or regularly.
        self.error: RpcError | None = None

    @property
    def connection(self) -> Connection | None:
        """None: there is none yet, or none any more."""
        if self._connected is None:
            self._connected = self._channel.connection
        return self._connected

    @property
    def lost(self) -> bool:
        """Whether either end has ended it."""
        connection = self.connection
        return self._stream.lost or (connection is not None and connection.lost)

    def write(self, message: bytes) -> None:
        """Send a message; nothing happens once it has ended."""
        self._stream.send(message)

    def close(self, *, lossy: bool) -> None:
        """This end is gone; on_close is not called. lossy: what was on its way is lost."""
        self._on_close = _nothing
        self._channel.end(lossy=lossy)

    def break_off(self, *, lossy: bool) -> None:
        """The connection breaks; lossy: with what was on its way. Each end sees it by itself."""
        if self.connection is not None:
            self.connection.break_off(lossy=lossy)

    def stall(self, duration_s: float, *, up: bool) -> None:
        """Hold back what is sent in one direction from now on."""
        if self.connection is not None:
            self.connection.stall(duration_s, up=up)

    def _close(self, error: RpcError | None) -> None:
        self.error = error
        self._on_close()
        self._channel.end()


def _nothing() -> Any:
    pass
