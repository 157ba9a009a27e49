"""Client for asyncio: calls share one connection, which is dialled when it is needed.

After a failed dial, calls fail at once with UNAVAILABLE until the back-off has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nereid.bounded_cache import BoundedCache
from nereid.rpc.grpc.client_connection import ClientConnection, ClientStream, request_block
from nereid.rpc.grpc.metadata import encode_metadata
from nereid.rpc.grpc.status import NotConnectedError, NotProcessedError, RpcError, Status
from nereid.rpc.http2.keepalive import TIMERS
from nereid.rpc.http2.limits import Limits
from nereid.rpc.http2.protocol import Http2Protocol
from nereid.rpc.net.address import authority_of
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from nereid.rpc.net.dialing import Dialer, look_up
from nereid.rpc.net.tls_files import REFUSED, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.rpc.net.dialing import LookUp
    from nereid.rpc.net.tls_files import Tls

    # Opens a stream. Arguments: a callback for each message, and one for the stream's end.
    OpenStream = Callable[
        [Callable[[bytes], None], Callable[[RpcError | None], None]], "StreamHandle"
    ]

_ATTEMPTS = 3
_CACHED_BLOCKS = 256


class StreamHandle(Protocol):
    """Client's end of a stream, for any kind of channel."""

    @property
    def buffered_bytes(self) -> int:
        """Sent bytes that wait for the connection, the window or the socket."""
        ...

    def send(self, message: bytes) -> None:
        """Queue one message without blocking; no-op after half_close() or the end."""
        ...

    def half_close(self) -> None:
        """End the client's side after the messages that were sent."""
        ...

    def cancel(self) -> None:
        """Reset the stream. No callback is called after this."""
        ...

    def pause(self) -> None:
        """Stop reopening the server's flow-control window, so that the server has to pause."""
        ...

    def resume(self) -> None:
        """Reopen the server's flow-control window after pause()."""
        ...


class Channel(Protocol):
    """Client of one server. It belongs to one event loop."""

    async def unary(
        self,
        path: str,
        message: bytes,
        *,
        timeout_s: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> bytes:
        """Make a unary call; raise RpcError for a status other than OK or without a connection."""
        ...

    def stream(  # noqa: PLR0913 (by keyword)
        self,
        path: str,
        *,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        on_message: Callable[[bytes], None],
        on_close: Callable[[RpcError | None], None],
        on_open: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
    ) -> StreamHandle:
        """Open a bidirectional stream.

        on_close is called once, with None for OK, and never before this method returns. on_writable
        is called when `buffered_bytes` falls below the low-water mark, or to zero.
        """
        ...

    async def close(self) -> None:
        """Close the connection; calls in flight fail with UNAVAILABLE."""
        ...


async def unary_over(open_stream: OpenStream, message: bytes, timeout_s: float | None) -> bytes:
    """Make a unary call over a new stream; raise RpcError like Channel.unary."""
    received: list[bytes] = []
    waiting: list[asyncio.Future[bytes]] = [asyncio.get_running_loop().create_future()]

    def closed(error: RpcError | None) -> None:
        if not waiting or waiting[0].done():
            return
        if error is not None:
            waiting[0].set_exception(error)
        elif len(received) != 1:
            text = f"{len(received)} responses to a unary call"
            waiting[0].set_exception(RpcError(Status.UNIMPLEMENTED, text))
        else:
            waiting[0].set_result(received[0])

    def receive(response: bytes) -> None:
        received.append(response)
        if len(received) > 1:
            # A server that goes on would fill the memory.
            closed(None)

    stream = open_stream(receive, closed)
    stream.send(message)
    stream.half_close()
    try:
        async with asyncio.timeout(timeout_s):
            return await waiting[0]
    except TimeoutError:
        raise RpcError(Status.DEADLINE_EXCEEDED, "the deadline passed") from None
    finally:
        stream.cancel()
        # The future may hold an error whose traceback refers to this frame. Break this reference
        # cycle, which may keep much memory.
        waiting.clear()
        del message, stream


@dataclass(frozen=True, kw_only=True)
class ChannelOptions(Limits):
    """Limits of the connection, and options for dialling it."""

    trusts_peer: bool = True
    # Limits the look-up of the host's name, and each attempt to connect to one address.
    connect_timeout_s: float = 5.0
    backoff: BackoffOptions = field(default_factory=BackoffOptions)
    # `None` means no encryption.
    tls: Tls | None = None
    # `None` means that :authority is derived from the address.
    authority: str | None = None
    # Returns metadata for a call of the given path, when the call begins.
    credentials: Callable[[str], Iterable[tuple[str, str | bytes]]] | None = None


class SocketChannel:
    """Channel over TCP or a Unix socket."""

    def __init__(
        self,
        address: str,
        options: ChannelOptions = ChannelOptions(),
        look_up: LookUp = look_up,
    ) -> None:
        self._address = address
        self._options = options
        self._dialer = Dialer(address, options.connect_timeout_s, look_up)
        self._authority = options.authority or authority_of(address)
        self._backoff = Backoff(options.backoff)
        self._queue: deque[ClientStream] = deque()
        self._blocks: BoundedCache[object, bytes] = BoundedCache(_CACHED_BLOCKS)
        self._current: _ClientProtocol | None = None
        # All connections with calls, including those that accept no more calls.
        self._open: set[_ClientProtocol] = set()
        self._dialing: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._last_error = ""
        self._closed = False

    async def unary(
        self,
        path: str,
        message: bytes,
        *,
        timeout_s: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> bytes:
        """Make a unary call, up to three times if the server does not process it."""
        block = self._block(path, metadata, timeout_s)
        open_stream = partial(self._open_stream, path, block)
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(_ATTEMPTS - 1):
                    with contextlib.suppress(NotProcessedError):
                        return await unary_over(open_stream, message, None)
                return await unary_over(open_stream, message, None)
        except TimeoutError:
            raise RpcError(Status.DEADLINE_EXCEEDED, "the deadline passed") from None

    def stream(  # noqa: PLR0913 (by keyword)
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
        block = self._block(path, metadata, None)
        return self._open_stream(path, block, on_message, on_close, on_open, on_writable)

    async def close(self) -> None:
        """Close all connections; calls in flight fail with UNAVAILABLE."""
        self._closed = True
        if self._dialing is not None:
            self._dialing.cancel()
            await asyncio.gather(self._dialing, return_exceptions=True)
        await self._dialer.close()
        self._fail_queue(RpcError(Status.UNAVAILABLE, "the channel is closed"))
        protocols = list(self._open)
        for protocol in protocols:
            protocol.close()
        for protocol in protocols:
            await protocol.closed.wait()

    def start_queued(self) -> None:
        """Start queued calls while the connection can take more streams."""
        queue = self._queue
        current = self._current
        while queue and current is not None and current.connection.usable:
            if not current.connection.has_stream_slot:
                return
            current.connection.start(queue.popleft())
        if current is not None and not current.connection.usable:
            self._current = None
            if queue:
                self._dial()

    def on_stream_slot(self, protocol: _ClientProtocol) -> None:
        """Start a queued call, because a connection can take another stream."""
        connection = protocol.connection
        if connection.settled:
            self._backoff.succeeded()
        self.start_queued()
        if connection.leaving and not connection.streams:
            protocol.close()

    def on_connection(self, protocol: _ClientProtocol) -> None:
        """Register a new connection."""
        self._open.add(protocol)

    def on_connection_lost(self, protocol: _ClientProtocol, because: str) -> None:
        """Forget a lost connection. If calls are queued, dial again."""
        self._open.discard(protocol)
        if self._current is protocol:
            self._current = None
            if not protocol.connection.settled:
                # The server never spoke HTTP/2, so the dial counts as failed.
                self._on_dial_failed(f"{self._address} closed the connection{because}")
            elif self._queue:
                self._dial()

    def _block(
        self, path: str, metadata: Iterable[tuple[str, str | bytes]], timeout_s: float | None
    ) -> bytes:
        pairs = tuple(metadata)
        key = (path, pairs, timeout_s)
        block = self._blocks.get(key)
        if block is None:
            block = request_block(
                path,
                self._authority,
                pairs,
                secure=self._options.tls is not None,
                timeout_s=timeout_s,
            )
            self._blocks.remember(key, block)
        return block

    def _open_stream(self, path: str, block: bytes, *callbacks: Any) -> ClientStream:
        credentials = self._options.credentials
        sign = None if credentials is None else lambda: encode_metadata(credentials(path))
        stream = ClientStream(block, *callbacks, sign=sign)
        self._submit(stream)
        return stream

    def _submit(self, stream: ClientStream) -> None:
        current = self._current
        if current is not None and current.connection.usable:
            if current.connection.has_stream_slot and not self._queue:
                current.connection.start(stream)
                return
        elif not self._dial():
            error = NotConnectedError(Status.UNAVAILABLE, self._last_error)
            asyncio.get_running_loop().call_soon(stream.close, error)
            return
        stream.leave_queue = self._queue.remove
        self._queue.append(stream)

    def _dial(self) -> bool:
        """Dial, unless a dial is in progress; return False if back-off or close() forbids that."""
        if self._closed:
            self._last_error = "the channel is closed"
            return False
        if self._dialing is None:
            loop = asyncio.get_running_loop()
            if loop.time() < self._not_before:
                return False
            self._current = None
            self._dialing = loop.create_task(self._connect())
        return True

    async def _connect(self) -> None:
        try:
            protocol = await self._dialer.connect(self._new_protocol, self._options.tls)
        except OSError as error:
            self._dialing = None
            why = "timed out" if isinstance(error, TimeoutError) else reason(error)
            self._on_dial_failed(f"cannot connect to {self._address}: {why}")
            return
        finally:
            self._dialing = None
        self._current = protocol
        self.start_queued()

    def _on_dial_failed(self, why: str) -> None:
        self._not_before = asyncio.get_running_loop().time() + self._backoff.next_delay_s()
        self._last_error = why
        self._fail_queue(NotConnectedError(Status.UNAVAILABLE, why))

    def _fail_queue(self, error: RpcError) -> None:
        queue, self._queue = self._queue, deque()
        for stream in queue:
            stream.close(error)

    def _new_protocol(self) -> _ClientProtocol:
        return _ClientProtocol(self, self._options)


class _ClientProtocol(Http2Protocol):
    def __init__(self, channel: SocketChannel, options: ChannelOptions) -> None:
        super().__init__(asyncio.get_running_loop())
        self.connection = ClientConnection(
            options, wake=self.writer.wake, on_stream_slot=partial(channel.on_stream_slot, self)
        )
        self.http2 = self.connection.http2
        self.closed = asyncio.Event()
        self._channel = channel
        self._options = options
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._channel.on_connection(self)
        if self._options.keepalive_interval_s is not None:
            self.on_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        # A server that refuses our certificate reports the refusal late or never. So guess the
        # cause if the server's settings did not arrive.
        because = f": {reason(exc)}" if isinstance(exc, ssl.SSLError) else ""
        if self._options.tls is not None and not self.connection.settled:
            because = because or REFUSED
        self._channel.on_connection_lost(self, because)
        self.connection.connection_lost(because)
        self.closed.set()

    def on_timer(self) -> None:
        assert self._options.keepalive_interval_s is not None
        step = min(self._options.keepalive_interval_s, self._options.keepalive_timeout_s) / TIMERS
        self._timer = self._loop.call_later(max(0.01, step), self.on_timer)
        super().on_timer()
