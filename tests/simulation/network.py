"""The network of a simulated mesh: connections that lose no order and nothing else.

Latency comes by the seed, and so do the faults that others ask for: wires that stall, connections
that break at both ends, each at its own time, pairs of hosts that cannot reach each other. What is
sent over a connection between such hosts arrives when they can, unless an end has given the
connection up by then: each has the product's own keepalive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.grpc.call import CALL_SLOTS, Call
from nereid.rpc.grpc.handlers import HandlerTasks, routes_of
from nereid.rpc.grpc.status import ConnectionLostError, NotConnectedError, RpcError, Status
from nereid.rpc.http2.keepalive import TIMERS, Keepalive, KeepaliveAction
from nereid.rpc.net.backoff import Backoff, BackoffOptions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from nereid.rpc import Handlers
    from tests.simulation.processes import MeshLoop, Process

    Metadata = Iterable[tuple[str, str | bytes]]

_LATENCY_S: Final = (0.0002, 0.0015)
_CONNECT_TIMEOUT_S: Final = 5.0
# When a host that does not reply is tried again, as TCP does.
_DIALS_S: Final = (1.0, 3.0)
# Of services by default (nereid.config.recovery): when to ping, and how long to wait then.
KEEPALIVE_S: Final = (2.0, 5.0)
_BACKOFF: Final = BackoffOptions()


class Wire:
    """One direction of a connection."""

    def __init__(self, network: Network, source: Process, destination: Process) -> None:
        self._loop = network.loop
        self._uniform = network.random.uniform
        self._destination = destination
        self.pair = source.name, destination.name
        # What leaves at one time arrives at one time.
        self._flight: deque[list[Callable[[], None]]] = deque()
        self._sent_s = -1.0
        self._last_s = 0.0
        self._stalled_until_s = 0.0
        # While the hosts cannot reach each other: what was sent meanwhile.
        self._held: list[Callable[[], None]] | None = None
        # Of the end that it leads to, while that has reason to look.
        self.keepalive: Keepalive | None = None
        if network.is_blocked(self.pair):
            self._held = []

    def send(self, arrive: Callable[[], None]) -> None:
        """arrive: called when it is at the other end, after all that was sent before it."""
        if self._held is not None:
            self._held.append(arrive)
            return
        now_s = self._loop.time()
        if now_s == self._sent_s and self._flight:
            self._flight[-1].append(arrive)
            return
        self._sent_s = now_s
        due_s = now_s + self._uniform(*_LATENCY_S)
        self._last_s = max(due_s, self._last_s, self._stalled_until_s)
        self._flight.append([arrive])
        self._loop.deliver_at(self._last_s, self._destination, self._arrive)

    @property
    def is_disturbed(self) -> bool:
        """Whether what is sent now takes longer than it should."""
        return self._held is not None or self._stalled_until_s > self._loop.time()

    def stall(self, duration_s: float) -> None:
        """Hold back what is sent from now on."""
        self._stalled_until_s = self._loop.time() + duration_s
        self._sent_s = -1.0

    def cut(self) -> None:
        """Lose what is on its way."""
        for each in self._flight:
            each.clear()
        self._sent_s = -1.0
        if self._held is not None:
            self._held.clear()

    def hold(self) -> None:
        """Nothing gets through."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """It gets through again, with what was sent meanwhile."""
        held, self._held = self._held, None
        for each in held or ():
            self.send(each)

    def _arrive(self) -> None:
        if self.keepalive is not None:
            self.keepalive.received = True
        for arrive in self._flight.popleft():
            arrive()


class Listener:
    """A server at an address."""

    def __init__(
        self,
        process: Process,
        handlers: Handlers,
        keepalive_s: tuple[float, float],
    ) -> None:
        self.process = process
        self.routes = routes_of(handlers)
        self.tasks = HandlerTasks()
        self.keepalive_s: tuple[float | None, float] = keepalive_s


class Network:
    """Where connections are made."""

    def __init__(self, loop: MeshLoop, choices: random.Random) -> None:
        self.loop = loop
        self.random = choices
        self._listeners: dict[str, Listener] = {}
        # Pairs of hosts of which the first cannot reach the second.
        self._blocked: dict[tuple[str, str], int] = {}
        self.connections: dict[Connection, None] = {}

    # ---- servers

    def listen(
        self,
        process: Process,
        address: str,
        handlers: Handlers,
        keepalive_s: tuple[float, float] = KEEPALIVE_S,
    ) -> None:
        """Serve at an address, in place of who served there before."""
        self._listeners[address] = Listener(process, handlers, keepalive_s)

    async def stop_listening(self, process: Process) -> None:
        """End what a process serves, and the connections there."""
        for address, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[address]
                for each in list(self.connections):
                    if each.listener is listener:
                        each.close_at_server()
                await listener.tasks.close()

    def listener(self, address: str) -> Listener | None:
        """Who serves there: a process that lives, though it may stand still."""
        listener = self._listeners.get(address)
        return listener if listener is not None and listener.process.alive else None

    # ---- faults

    def is_blocked(self, pair: tuple[str, str]) -> bool:
        """Whether the first host cannot reach the second."""
        return pair in self._blocked

    def block(self, pair: tuple[str, str]) -> None:
        """The first host cannot reach the second from now on."""
        self._blocked[pair] = self._blocked.get(pair, 0) + 1
        for connection in self.connections:
            connection.follow(pair)

    def unblock(self, pair: tuple[str, str]) -> None:
        """It can again, unless something else keeps it from that."""
        self._blocked[pair] -= 1
        if not self._blocked[pair]:
            del self._blocked[pair]
        for connection in list(self.connections):
            connection.follow(pair)

    def on_stand_still(self, process: Process) -> None:
        """A process stands still: the other ends of its connections may notice that."""
        for connection in self.connections:
            if process in (connection.client, connection.listener.process):
                connection.watch()

    def end_process(self, process: Process, *, lossy: bool) -> None:
        """It was killed; the kernel ends its connections. lossy: what it sent last is lost."""
        for connection in list(self.connections):
            if connection.client is process:
                connection.close_at_client(lossy=lossy)
            elif connection.listener.process is process:
                connection.close_at_server(lossy=lossy)

    def connections_of(self, process: Process) -> list[Connection]:
        """To it and from it."""
        return [
            each for each in self.connections if process in (each.client, each.listener.process)
        ]

    # ---- clients

    def open_stream(  # noqa: PLR0913 (by keyword)
        self,
        process: Process,
        address: str,
        path: str,
        *,
        metadata: Metadata,
        on_message: Callable[[bytes], None],
        on_close: Callable[[], None],
        keepalive_s: tuple[float, float] = KEEPALIVE_S,
    ) -> Stream:
        """A stream on a connection of its own, as instances have."""
        return Stream(self, process, address, path, metadata, on_message, on_close, keepalive_s)


class Connection:
    """One that is established. Each end sees by itself that it has ended."""

    def __init__(
        self,
        network: Network,
        client: Process,
        listener: Listener,
        keepalive_s: tuple[float | None, float],
        on_lost: Callable[[], None],
    ) -> None:
        """on_lost: the client's end is gone."""
        self._network = network
        self._loop = network.loop
        self.client, self.listener = client, listener
        self.up = Wire(network, client, listener.process)
        self.down = Wire(network, listener.process, client)
        self._on_lost = on_lost
        self.client_open = self.server_open = True
        # By number; at each end those that have not ended there.
        self.streams: dict[int, ClientStream] = {}
        self.calls: dict[int, ServerCall] = {}
        self._client_keepalive_s = keepalive_s
        self.server_keepalive_s = listener.keepalive_s
        network.connections[self] = None
        if network.is_blocked(self.up.pair) or network.is_blocked(self.down.pair):
            self.watch()

    @property
    def lost(self) -> bool:
        """Whether an end has ended it."""
        return not (self.client_open and self.server_open)

    # ---- faults

    def break_off(self, *, lossy: bool) -> None:
        """It breaks; lossy: with what was on its way."""
        if lossy:
            self.up.cut()
            self.down.cut()
        self.up.send(self._lose_at_server)
        self.down.send(self._lose_at_client)

    def stall(self, duration_s: float, *, up: bool) -> None:
        """Hold back what is sent in one direction from now on."""
        (self.up if up else self.down).stall(duration_s)
        self.watch()

    def follow(self, pair: tuple[str, str]) -> None:
        """Whether a pair of hosts can reach each other has changed."""
        for wire in (self.up, self.down):
            if wire.pair == pair:
                if self._network.is_blocked(pair):
                    wire.hold()
                    self.watch()
                else:
                    wire.release()

    # ---- its ends

    def close_at_client(self, *, lossy: bool = False) -> None:
        """The client's end is closed, or its process has ended."""
        if self.client_open:
            if lossy:
                self.up.cut()
            self.up.send(self._lose_at_server)
            self._lose_at_client()

    def close_at_server(self, *, lossy: bool = False) -> None:
        """As close_at_client, at the other end."""
        if self.server_open:
            if lossy:
                self.down.cut()
            self.down.send(self._lose_at_client)
            self._lose_at_server()

    def _lose_at_client(self) -> None:
        if not self.client_open:
            return
        self.client_open = False
        self._forget_if_over()
        self.up.send(self._lose_at_server)
        if not self.client.alive:
            return
        self._on_lost()
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.close(ConnectionLostError(Status.UNAVAILABLE, "the connection was lost"))

    def _lose_at_server(self) -> None:
        if not self.server_open:
            return
        self.server_open = False
        self._forget_if_over()
        self.down.send(self._lose_at_client)
        if not self.listener.process.alive:
            return
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.cancel()

    def _forget_if_over(self) -> None:
        if not (self.client_open or self.server_open):
            self._network.connections.pop(self, None)

    # ---- keepalive

    def watch(self) -> None:
        """The other end may be silent: look, as long as that may be so."""
        if self.up.keepalive is None and self.server_open:
            self._watch(self.listener.process, self.up, self.down, self.server_keepalive_s)
        if self.down.keepalive is None and self.client_open:
            self._watch(self.client, self.down, self.up, self._client_keepalive_s)

    def _watch(
        self, process: Process, wire: Wire, other: Wire, times_s: tuple[float | None, float]
    ) -> None:
        """wire: to this process' end; other: from it."""
        interval_s, timeout_s = times_s
        if interval_s is None:
            return
        loop = self._loop
        keepalive = wire.keepalive = Keepalive(interval_s, timeout_s, when_idle=True)
        step_s = min(interval_s, timeout_s) / TIMERS
        last_s = loop.time()

        def on_timer() -> None:
            nonlocal last_s
            is_open = self.server_open if wire is self.up else self.client_open
            if not is_open:
                wire.keepalive = None
                return
            now_s = loop.time()
            heard = keepalive.received
            action = keepalive.on_timer(now_s, now_s - last_s, in_use=True)
            last_s = now_s
            if action is KeepaliveAction.SEND_PING:
                other.send(lambda: wire.send(_nothing))
            elif action is KeepaliveAction.GIVE_UP:
                wire.keepalive = None
                if wire is self.up:
                    self.close_at_server()
                else:
                    self.close_at_client()
                return
            if heard and not self._is_disturbed():
                wire.keepalive = None
            else:
                loop.call_later(step_s, on_timer)

        loop.run_in(process, loop.call_later, step_s, on_timer)

    def _is_disturbed(self) -> bool:
        if self.client.stands_still or self.listener.process.stands_still:
            return True
        return self.up.is_disturbed or self.down.is_disturbed


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
            call = self._call
            self._connection.up.send(lambda: call.on_item(item))

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


class ServerCall(Call):
    """The server's end of a call."""

    __slots__ = (
        *CALL_SLOTS,
        "_accepted",
        "_connection",
        "_message",
        "_number",
        "_route",
        "_stream",
    )

    def __init__(
        self,
        connection: Connection,
        stream: ClientStream,
        number: int,
        path: str,
        metadata: tuple[tuple[str, str | bytes], ...],
    ) -> None:
        super().__init__(path, connection.client.name, metadata)
        self._connection = connection
        self._stream = stream
        self._number = number
        self._route = connection.listener.routes.get(path)
        self._accepted = False
        self._message: bytes | None = None

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
        if self._route is None:
            self.fail(Status.UNIMPLEMENTED, f"unknown method {self.path}")
        elif self._route.stream is not None:
            self.run_callback(self._route.stream, self)

    def on_item(self, item: bytes | None) -> None:
        """A message of the client, or its end."""
        if self.done or self._route is None:
            return
        if self._route.stream is not None:
            if item is None:
                if self.on_half_close is not None:
                    self.run_callback(self.on_half_close)
            elif self.on_message is not None:
                self.run_callback(self.on_message, item)
        elif item is not None:
            self._message = item
        elif self._message is None:
            self.fail(Status.UNIMPLEMENTED, "no request message")
        elif self._route.unary is not None:
            self.run_callback(self._route.unary, self, self._message)
        elif self._route.coroutine is not None:
            self._connection.listener.tasks.spawn(self, self._route.coroutine, self._message)

    def on_reset(self) -> None:
        """The client has cancelled it."""
        self._connection.calls.pop(self._number, None)
        self.cancel()

    # ---- the handler's

    def reply(self, message: bytes) -> None:
        self.send(message)
        self.finish()

    def accept(self) -> None:
        if not self.done and not self._accepted:
            self._accepted = True
            self._connection.down.send(self._stream.on_accepted)

    def send(self, message: bytes) -> None:
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
        response: asyncio.Future[bytes] = self._loop.create_future()
        received: list[bytes] = []

        def closed(error: RpcError | None) -> None:
            if response.done():
                return
            if error is not None:
                response.set_exception(error)
            else:
                response.set_result(b"".join(received))

        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        stream = ClientStream(path, metadata, received.append, closed, deadline=deadline)
        self._submit(stream)
        stream.send(message)
        stream.half_close()
        try:
            async with asyncio.timeout(timeout_s):
                return await response
        except TimeoutError:
            raise RpcError(Status.DEADLINE_EXCEEDED, "the deadline passed") from None
        finally:
            stream.cancel()

    def stream(  # noqa: PLR0913 (by keyword)
        self,
        path: str,
        *,
        metadata: Metadata = (),
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,  # noqa: ARG002 (it always is)
    ) -> ClientStream:
        stream = ClientStream(path, metadata, on_message, on_close, on_open)
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
        trip_s = 2 * self._network.random.uniform(*_LATENCY_S)
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

    def __init__(  # noqa: PLR0913, PLR0917 (Network.open_stream's)
        self,
        network: Network,
        process: Process,
        address: str,
        path: str,
        metadata: Metadata,
        on_message: Callable[[bytes], None],
        on_close: Callable[[], None],
        keepalive_s: tuple[float, float],
    ) -> None:
        self._channel = SimulatedChannel(network, process, address, keepalive_s=keepalive_s)
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
