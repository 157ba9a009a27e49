"""gRPC server for asyncio, on our own engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nereid.rpc.grpc.deadlines import Deadlines
from nereid.rpc.grpc.handlers import HandlerTasks, routes_of
from nereid.rpc.grpc.message_compression import MessageCompression
from nereid.rpc.grpc.server_connection import ServerCall, ServerConnection, ServerContext
from nereid.rpc.http2.keepalive import TIMERS
from nereid.rpc.http2.limits import Limits
from nereid.rpc.http2.protocol import Http2Protocol
from nereid.rpc.net.address import host_of, is_local, text_of
from nereid.rpc.net.limits.connection_counts import ConnectionCounts
from nereid.rpc.net.limits.stall_detection import IdleWatch, StallWatch
from nereid.rpc.net.listener import Listener, listen
from nereid.rpc.net.tls_files import certificate_names

if TYPE_CHECKING:
    from nereid.rpc.grpc.handlers import Handlers
    from nereid.rpc.net.limits.budget import ByteBudget
    from nereid.rpc.net.shared_ports import InheritedPort
    from nereid.rpc.net.tls_files import Tls
    from nereid.rpc.net.zlib_queue import ZlibQueue

_log = logging.getLogger("nereid.rpc")

_TIMER_S = 1.0
# Seconds to wait for the reply to the ping after the first GOAWAY. Then the client is assumed to
# know of the drain.
_DRAIN_NOTICE_S = 0.5
_AGE_JITTER = 0.1


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Limits):
    """Limits of each connection, and rules for accepting and ending connections."""

    # Limit for the first SETTINGS of a client.
    greeting_timeout_s: float = 10.0
    # For a connection without calls and pings; `None` means no limit.
    idle_timeout_s: float | None = None
    max_connection_age_s: float | None = None
    # Seconds for calls in flight on an old connection; `None` means no limit.
    max_connection_age_grace_s: float | None = None
    # One of compression.LEVELS, for compressible methods.
    compression: str = "none"
    # True if several processes listen at the same TCP port.
    reuse_port: bool = False
    # At all addresses together. Further connections are closed.
    max_connections: int | None = None
    max_client_connections: int | None = None


class Engine(Protocol):
    """Interface of a gRPC server at the edge: Server, or GrpcioServer in grpcio_engine."""

    @property
    def connections(self) -> int | None:
        """Number of open connections; `None` if the engine does not know."""

    async def listen(
        self, address: str, tls: Tls | None = None, *, inherited: InheritedPort | None = None
    ) -> str:
        """Listen at one more address. Return the address with its actual port."""

    async def announce_drain(self, limit_s: float, *, listening: bool = False) -> None:
        """Ask clients to make their next calls elsewhere."""

    async def drain(self, grace_s: float) -> None:
        """Accept no new calls, let calls in flight finish for at most `grace_s`, then close."""


class Server:
    """Server for one table of handlers, at any number of addresses, in one event loop."""

    def __init__(
        self,
        handlers: Handlers,
        options: ServerOptions = ServerOptions(),
        budget: ByteBudget | None = None,
        zlib_queue: ZlibQueue | None = None,
    ) -> None:
        """Create a server that does not listen yet.

        Without a budget, bytes are not counted. Without a zlib_queue, large messages are inflated
        and compressed in the event loop.
        """
        self._options = options
        self._tasks = HandlerTasks()
        self._messages = None if zlib_queue is None else MessageCompression(zlib_queue)
        self._deadlines: Deadlines[ServerCall] = Deadlines()
        self._context = ServerContext(
            routes_of(handlers),
            self._deadlines,
            now=time.monotonic,
            spawn=self._tasks.spawn,
            on_earlier_deadline=self._set_deadline_timer,
            compression=options.compression,
            budget=budget,
            inflate=None if self._messages is None else self._messages.inflate,
            deflate=None if self._messages is None else self._messages.deflate,
            admit=handlers.admit,
        )
        self._listeners: list[Listener] = []
        self._http2_protocols: set[_ServerProtocol] = set()
        self._empty = asyncio.Event()
        self._counts = ConnectionCounts(
            "gRPC", options.max_connections, options.max_client_connections
        )
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None

    async def listen(
        self,
        address: str,
        tls: Tls | None = None,
        *,
        private: bool = False,
        inherited: InheritedPort | None = None,
    ) -> str:
        """Listen at one more address. Return the address with its actual port.

        tls must negotiate h2. If private is True, only this user may connect to a Unix socket.
        Other processes may also serve the inherited sockets.
        """
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_later(self._timer_s(), self._on_timer)
        reuse_port = self._options.reuse_port
        listener = await listen(
            self._new_protocol,
            address,
            self._counts,
            tls=tls,
            reuse_port=reuse_port,
            private=private,
            inherited=inherited,
        )
        self._listeners.append(listener)
        return listener.address

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._http2_protocols)

    async def announce_drain(self, limit_s: float, *, listening: bool = False) -> None:
        """Ask clients to make their next calls elsewhere. New calls are refused after this returns.

        If `listening` is True, new connections are still accepted, because there may be no other
        server.
        """
        if not listening:
            self._stop_listening()
        leaving = tuple(self._http2_protocols)
        for protocol in leaving:
            protocol.http2.control.start_drain()
        with contextlib.suppress(TimeoutError):
            # A connection without calls is closed once the client acknowledges the drain.
            async with asyncio.timeout(min(_DRAIN_NOTICE_S, limit_s)):
                await self._all_closed()
        for protocol in leaving:
            protocol.http2.control.finish_drain()

    async def drain(self, grace_s: float) -> None:
        """Accept no new calls, let calls in flight finish for at most `grace_s`, then close."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.announce_drain(grace_s)
                await self._all_closed()
        await self.close()

    async def close(self) -> None:
        """Send the responses that handlers have already given, then close every connection."""
        self._stop_listening()
        for timer in (self._timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        for protocol in list(self._http2_protocols):
            protocol.http2.control.finish_drain()
            protocol.close()
        await self._all_closed()
        await self._tasks.close()
        if self._messages is not None:
            self._messages.close()

    def on_connection(self, protocol: _ServerProtocol) -> None:
        """Register a new connection, or abort it if there are too many connections."""
        self._http2_protocols.add(protocol)
        self._empty.clear()
        if self._counts.add(protocol.client, after_handshake=protocol.secure) > 0:
            # Abort before SETTINGS are sent. After SETTINGS, a gRPC client would dial again without
            # a pause, instead of backing off.
            protocol.abort()

    def on_connection_lost(self, protocol: _ServerProtocol) -> None:
        """Forget a connection that was closed or lost."""
        self._http2_protocols.discard(protocol)
        self._counts.remove(protocol.client)
        if not self._http2_protocols:
            self._empty.set()

    def _new_protocol(self) -> _ServerProtocol:
        return _ServerProtocol(self, self._context, self._options)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def _all_closed(self) -> None:
        if self._http2_protocols:
            await self._empty.wait()

    def _timer_s(self) -> float:
        interval = self._options.keepalive_interval_s
        if interval is None:
            return _TIMER_S
        shortest = min(interval, self._options.keepalive_timeout_s)
        return max(0.01, min(_TIMER_S, shortest / TIMERS))

    def _on_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timer_s(), self._on_timer)
        for protocol in list(self._http2_protocols):
            protocol.on_timer()

    def _set_deadline_timer(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        due = self._deadlines.next_due()
        if due is not None:
            loop = asyncio.get_running_loop()
            delay = max(0.0, due - time.monotonic())
            self._deadline_timer = loop.call_later(delay, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        for call in self._deadlines.expire(time.monotonic()):
            call.expire()
        self._set_deadline_timer()


class _ServerProtocol(Http2Protocol):
    connection: ServerConnection

    def __init__(self, server: Server, context: ServerContext, options: ServerOptions) -> None:
        super().__init__(asyncio.get_running_loop())
        self._server = server
        self._context = context
        self._options = options
        self._greet_by = time.monotonic() + options.greeting_timeout_s
        self._stall = StallWatch(options.write_timeout_s)
        self._retire_at: float | None = None
        self._cut_at: float | None = None
        self._idle = IdleWatch(options.idle_timeout_s)
        if options.max_connection_age_s is not None:
            spread = random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)  # noqa: S311 (no secret)
            self._retire_at = time.monotonic() + options.max_connection_age_s * spread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = text_of(transport.get_extra_info("peername"))
        local = text_of(transport.get_extra_info("sockname"))
        self.connection = ServerConnection(
            self._options,
            self._context,
            peer,
            local=local,
            wake=self.writer.wake,
            write_through=self.writer.write_through,
            flush=self.writer.flush,
            peer_names=certificate_names(transport.get_extra_info("peercert")),
            peer_is_local=is_local(peer) or host_of(peer) == host_of(local),
        )
        self.http2 = self.connection.http2
        super().connection_made(transport)
        self._server.on_connection(self)

    @property
    def client(self) -> str:
        """Client to which the connection belongs (net.address.client_of)."""
        return self.connection.client

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.connection.connection_lost()
        self._server.on_connection_lost(self)

    def on_timer(self) -> None:
        now = time.monotonic()
        if not self.http2.control.settled and now >= self._greet_by:
            self.abort()
            return
        super().on_timer()
        if self._options.write_timeout_s is not None:
            self._abort_if_stalled(now)
        if self._options.read_timeout_s is not None:
            self.connection.end_incomplete_requests(now)
        control, streams = self.http2.control, self.http2.streams
        activity = streams.last_id, control.pings
        if self._idle.idle_too_long(activity, now, in_use=bool(streams.open)):
            self._retire_at = now
        if self._retire_at is not None and now >= self._retire_at:
            self._retire()

    def _abort_if_stalled(self, now: float) -> None:
        """Abort if the client reads nothing; if one response stays unread, end only its call."""
        transport = self.writer.transport
        waiting_bytes = transport.get_write_buffer_size() if transport else 0
        if self._stall.stalled(waiting_bytes, now):
            self.abort()
        elif not waiting_bytes:
            self.connection.end_unread_responses(now)

    def _retire(self) -> None:
        grace_s = self._options.max_connection_age_grace_s
        control = self.http2.control
        if not control.draining:
            control.start_drain()
            self._cut_at = None if grace_s is None else time.monotonic() + grace_s
        elif self._cut_at is not None and time.monotonic() >= self._cut_at:
            self.abort()
        else:
            control.finish_drain()
