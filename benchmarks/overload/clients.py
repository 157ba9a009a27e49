"""Clients of an open loop, which do not wait for responses before they send more.

The clients use both protocols and many connections. After the deadline of a request, its response
is worthless.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass

from benchmarks import wire
from benchmarks.overload import model
from nereid.rpc import RpcError, SocketChannel, Status

SERVED, REFUSED, OVERDUE, FAILED = "served", "refused", "overdue", "failed"
# Interval at which clients send what is due.
_TICK_S = 0.005
_GRPC_CONNECTIONS = 16
_MAX_HTTP_CONNECTIONS = 2000


@dataclass(frozen=True)
class Outcome:
    """Outcome of one request.

    sent_s: time of sending in seconds since the start. latency_s: seconds until the response came
    or the client gave up. has_hint: the response says when to try again.
    """

    sent_s: float
    latency_s: float
    urgent: bool
    kind: str
    has_hint: bool = False


class Clients:
    """Clients of one mesh; `outcomes` has all requests that have ended."""

    def __init__(
        self, address: wire.Address, deadline_s: float, urgent: float, grpc: float = 0.5
    ) -> None:
        """Set the share of urgent requests, and the share that goes over gRPC."""
        self._grpc = grpc
        self._deadline_s = deadline_s
        self._urgent = urgent
        self._random = random.Random(1)
        self._started = time.monotonic()
        self._channels = [
            SocketChannel(f"127.0.0.1:{address.grpc_port}") for _ in range(_GRPC_CONNECTIONS)
        ]
        self._messages = [model.grpc_message(level) for level in (model.ORDINARY, model.URGENT)]
        self._requests = [model.http_request(level) for level in (model.ORDINARY, model.URGENT)]
        self._http_port = address.http_port
        self._idle: deque[_HttpConnection] = deque()
        self._http_connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcomes: list[Outcome] = []
        # Number of requests for which there were too many connections already.
        self.unsent = 0

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    async def offer(self, rate: float, seconds: float) -> None:
        """Send this many requests per second, at random times."""
        end_s = self.now_s + seconds
        due_s = self.now_s
        while self.now_s < end_s:
            while due_s <= self.now_s:
                due_s += self._random.expovariate(rate)
                self._send()
            await asyncio.sleep(_TICK_S)

    async def close(self) -> None:
        """Close all connections."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * self._deadline_s)
        for task in self._tasks:
            task.cancel()
        for channel in self._channels:
            await channel.close()
        for connection in self._idle:
            connection.close()

    def _send(self) -> None:
        urgent = self._random.random() < self._urgent
        if self._random.random() < self._grpc:
            self._spawn(self._call(self._random.choice(self._channels), urgent))
        elif self._idle or self._http_connections < _MAX_HTTP_CONNECTIONS:
            self._spawn(self._post(urgent))
        else:
            self.unsent += 1

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _record(self, sent_s: float, kind: str, *, urgent: bool, has_hint: bool = False) -> None:
        latency_s = self.now_s - sent_s
        if kind == SERVED and latency_s > self._deadline_s:
            kind = OVERDUE
        self.outcomes.append(Outcome(sent_s, latency_s, urgent, kind, has_hint))

    async def _call(self, channel: SocketChannel, urgent: bool) -> None:
        sent_s, kind, has_hint = self.now_s, SERVED, False
        try:
            await channel.unary(wire.GRPC_PATH, self._messages[urgent], timeout_s=self._deadline_s)
        except RpcError as error:
            kinds = {Status.UNAVAILABLE: REFUSED, Status.DEADLINE_EXCEEDED: OVERDUE}
            kind = kinds.get(error.status, FAILED)
            has_hint = any(name == "grpc-retry-pushback-ms" for name, _ in error.trailers)
        self._record(sent_s, kind, urgent=urgent, has_hint=has_hint)

    async def _post(self, urgent: bool) -> None:
        sent_s = self.now_s
        self._http_connections += 1
        connection: _HttpConnection | None = None
        try:
            async with asyncio.timeout(self._deadline_s):
                connection = self._idle.pop() if self._idle else await self._connect()
                status, has_hint = await connection.exchange(self._requests[urgent])
        except (TimeoutError, OSError) as error:
            # Close the connection, as a client does that gives up.
            if connection is not None:
                connection.close()
            kind = OVERDUE if isinstance(error, TimeoutError) else FAILED
            self._record(sent_s, kind, urgent=urgent)
        else:
            self._idle.append(connection)
            kind = {200: SERVED, 503: REFUSED}.get(status, FAILED)
            self._record(sent_s, kind, urgent=urgent, has_hint=has_hint)
        finally:
            self._http_connections -= 1

    async def _connect(self) -> "_HttpConnection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_HttpConnection, "127.0.0.1", self._http_port)
        return connection


class _HttpConnection(asyncio.Protocol):
    """Connection with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._reply: asyncio.Future[tuple[int, bool]] | None = None

    async def exchange(self, request: bytes) -> tuple[int, bool]:
        """Send a request. Return the status, and whether the response says when to try again."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("closed")
        self._data = b""
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport), "a socket"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read the response."""
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0 or self._reply is None or self._reply.done():
            return
        head = self._data[:end].lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        if len(self._data) >= end + 4 + length:
            self._reply.set_result((int(head.split()[1]), b"\r\nretry-after: " in head))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(exc or ConnectionError("closed"))
