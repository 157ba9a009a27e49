"""HTTP/2 connections to a gRPC server, and the choice of a connection for each request."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from nereid.rpc.grpc.client_connection import ClientConnection, request_block
from nereid.rpc.http2.limits import Limits
from nereid.rpc.http2.protocol import Http2Protocol
from nereid.rpc.net.address import authority_of
from nereid.rpc.net.tls_files import REFUSED, reason
from nereid_perf.wire.dials import Dials

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.net.dialing import Dialer
    from nereid.rpc.net.tls_files import Tls
    from nereid_perf.plan import Plan
    from nereid_perf.wire.client import OnEnd, PendingRequest

_LIMITS: Final = Limits(trusts_peer=True)


class Carrier(Protocol):
    """The part of a client that begins requests on one connection."""

    def begin(self, pending: PendingRequest) -> None:
        """Begin a request; the connection has a free slot for it."""

    def on_connection_lost(self) -> None:
        """React to the loss of the connection, after its streams were closed."""


class GrpcConnections:
    """Connections with slots. The slot that became free last is used next."""

    def __init__(
        self, plan: Plan, on_end: OnEnd, new_carrier: Callable[[GrpcConnection], Carrier]
    ) -> None:
        self.on_end = on_end
        self.slots_per_connection = plan.streams_per_connection
        self._new_carrier = new_carrier
        self._timeout_s = plan.connect_timeout_s
        self._free: list[GrpcConnection] = []
        self._open: set[GrpcConnection] = set()
        self._dials = Dials(plan, on_end, self._connect, self.slots_per_connection)
        # All connections, also those without settings and those that take no more requests.
        self._all: set[GrpcConnection] = set()
        self._all_lost = asyncio.Event()

    async def open(self, in_flight: int) -> None:
        """Open connections for this many requests; raise OSError with a text for users."""
        while sum(connection.slots for connection in self._open) < in_flight:
            missing = in_flight - sum(connection.slots for connection in self._open)
            dials = -(-missing // self.slots_per_connection)
            before = len(self._open)
            await asyncio.gather(*(self._dials.dial() for _ in range(dials)))
            if len(self._open) < before + dials:
                raise OSError(self._dials.error)

    def send(self, pending: PendingRequest) -> None:
        """Begin a request on a free slot; if there is none, queue the request and dial."""
        if self._free:
            connection = self._free.pop()
            pending.carrier = connection
            connection.carrier.begin(pending)
            return
        self._dials.queue.append(pending)
        self._dials.dial_for_queue()

    def forget(self, pending: PendingRequest) -> bool:
        """Drop a request if it still waits for a slot; return whether it did wait."""
        if pending.carrier is None:
            self._dials.queue.remove(pending)
            return True
        return False

    async def close(self) -> None:
        """Close all connections."""
        await self._dials.close()
        for connection in tuple(self._all):
            connection.abort()
        if self._all:
            await self._all_lost.wait()

    def on_slot(self, connection: GrpcConnection) -> None:
        """Give a slot that has become free to a waiting request, or keep it as free."""
        if not connection.usable:
            # The connection got a GOAWAY, or is lost. Others are dialled when they are needed.
            return
        if self._dials.queue:
            pending = self._dials.queue.popleft()
            pending.carrier = connection
            connection.carrier.begin(pending)
        else:
            self._free.append(connection)

    def on_settled(self, connection: GrpcConnection) -> None:
        """Use a connection on which the server's HTTP/2 settings have arrived."""
        connection.carrier = self._new_carrier(connection)
        self._open.add(connection)
        for _ in range(connection.slots):
            self.on_slot(connection)

    def on_connected(self, connection: GrpcConnection) -> None:
        """Keep a new connection."""
        self._all.add(connection)

    def on_lost(self, connection: GrpcConnection) -> None:
        """Forget a connection that is lost."""
        self.on_unusable(connection)
        self._all.discard(connection)
        if self._dials.closed and not self._all:
            self._all_lost.set()

    def on_unusable(self, connection: GrpcConnection) -> None:
        """Begin no more requests on a connection."""
        self._open.discard(connection)
        self._free = [free for free in self._free if free is not connection]
        self._dials.dial_for_queue()

    async def _connect(self, dialer: Dialer, tls: Tls | None) -> None:
        connection = await dialer.connect(partial(GrpcConnection, self), tls)
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(connection.settled)
        except TimeoutError:
            connection.abort()
            raise


class GrpcConnection(Http2Protocol):
    """A connection; `settled` and `carrier` are set when the server's HTTP/2 settings arrive."""

    carrier: Carrier

    def __init__(self, connections: GrpcConnections) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop)
        self.settled: asyncio.Future[None] = loop.create_future()
        self.connection = ClientConnection(
            _LIMITS, wake=self.writer.wake, on_stream_slot=self._on_stream_slot
        )
        self.http2 = self.connection.http2
        self._connections = connections
        self._lost = False

    @property
    def slots(self) -> int:
        """Maximum number of requests in flight on the connection, by the server's and own limit."""
        most = self.http2.control.peer_max_streams
        wanted = self._connections.slots_per_connection
        return wanted if most is None else max(1, min(most, wanted))

    @property
    def usable(self) -> bool:
        """True while requests may begin on the connection."""
        return not self._lost and self.connection.usable

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start HTTP/2, and report the connection."""
        super().connection_made(transport)
        self._connections.on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss of the connection."""
        super().connection_lost(exc)
        self._lost = True
        because = f": {reason(exc)}" if exc is not None else ""
        if not self.settled.done():
            if self.secure and not isinstance(exc, ssl.SSLError):
                because += REFUSED
            self.settled.set_exception(OSError(f"the server closed the connection{because}"))
        self._connections.on_lost(self)
        self.connection.connection_lost(because)
        if self.settled.exception() is None:
            self.carrier.on_connection_lost()

    def _on_stream_slot(self) -> None:
        if not self.settled.done() and self.connection.settled:
            self.settled.set_result(None)
            self._connections.on_settled(self)
        if self.connection.leaving:
            self._connections.on_unusable(self)
            if not self.connection.streams:
                self.close()


def block_of(plan: Plan, path: str) -> bytes:
    """Return the header block of a run's requests."""
    metadata = [(name.lower(), value) for name, value in plan.endpoint.headers]
    if plan.compression != "none":
        metadata.append(("grpc-encoding", plan.compression))
    return request_block(
        path,
        authority_of(plan.endpoint.address),
        metadata,
        secure=plan.endpoint.tls is not None,
    )
