"""Connections to a server over HTTP/1.1, with one request in flight on each."""

# layout: compiled

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.rpc.net.dialing import Dialer
from nereid.rpc.net.tls_files import reason
from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once
from nereid_adopt.proxy.http_responses import ResponseReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.rpc.net.tls_files import Tls
    from nereid_adopt.proxy.http_requests import HttpRequest
    from nereid_adopt.proxy.http_responses import ResponseHeads

CONNECT_TIMEOUT_S: Final = 5.0
_JOIN_BYTES: Final = 1 << 18
_HEAD_END: Final = b"\r\n\r\n"


class NoResponseError(Exception):
    """Raised if a server has sent no byte of a response; the text says why."""


class CutOffError(Exception):
    """Raised if a response ends before it is complete."""


class ExchangeOwner:
    """Receiver of one response."""

    @property
    def takes_interim(self) -> bool:
        """True if interim responses (1xx) are passed on before the final head."""
        return False

    def on_response(self, response: ResponseReader) -> bool:  # noqa: ARG002
        """Handle the final head; return whether the response is passed on."""
        return True

    def on_data(self, data: bytes) -> None:
        """Handle bytes of a response that is passed on, as they arrive, from its head on."""

    def on_done(self, response: ResponseReader, error: Exception | None) -> None:
        """Handle the end: a complete response, NoResponseError or CutOffError."""


class HttpExchange:
    """One request and its response.

    may_repeat: whether the request is sent again if the connection was closed before the response.
    """

    def __init__(
        self,
        parts: Sequence[bytes | memoryview],
        response: ResponseReader,
        owner: ExchangeOwner,
        *,
        may_repeat: bool = True,
    ) -> None:
        self.parts = parts
        self.response = response
        self.owner = owner
        self.may_repeat = may_repeat
        # True when on_response() was called, and what it has returned.
        self.is_decided = self.passes_on = False


class HttpServerConnection:
    """A connection that is dialled when it is needed, and again if the server has closed it."""

    def __init__(self, address: str, heads: ResponseHeads, tls: Tls | None = None) -> None:
        self.heads = heads
        self._tls = tls
        self._dialer = Dialer(address, CONNECT_TIMEOUT_S)
        self._address = address
        self._protocol: _ServerProtocol | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        """True if there is a connection that takes requests."""
        return self._protocol is not None and self._protocol.usable

    def set_paused(self, paused: bool) -> None:
        """Stop reading the response while its client does not read it, or continue."""
        self._is_paused = paused
        if self._protocol is not None:
            self._protocol.set_paused(paused)

    def send(self, exchange: HttpExchange) -> None:
        """Send a whole request. Its owner is called later."""
        protocol = self._protocol
        if protocol is not None and protocol.usable:
            protocol.begin(exchange)
            return
        exchange.may_repeat = False
        self._dialing = asyncio.get_running_loop().create_task(self._dial_and_send(exchange))

    def on_done(self, exchange: HttpExchange, error: Exception | None) -> None:
        """Handle an exchange's end; called by the connection."""
        if exchange.may_repeat and isinstance(error, NoResponseError):
            # The server may have closed the idle connection before the request arrived.
            self.send(exchange)
        else:
            exchange.owner.on_done(exchange.response, error)

    async def request(
        self,
        parts: Sequence[bytes | memoryview],
        *,
        on_data: Callable[[bytes], None] | None = None,
        max_body_bytes: int = 1 << 31,
        rest: HttpRequest | None = None,
        on_piece: Callable[[], None] | None = None,
    ) -> ResponseReader:
        """Send a request, and return its complete response.

        on_data: gets the response's bytes as they arrive. rest: a request whose body arrives.
        on_piece: called before each piece of it is sent. Raises NoResponseError, CutOffError.
        """
        response = ResponseReader(self.heads, max_body_bytes=max_body_bytes)
        owner = _Awaited(on_data)
        exchange = HttpExchange(parts, response, owner, may_repeat=rest is None)
        try:
            if rest is None:
                self.send(exchange)
            else:
                protocol = self._protocol
                if protocol is None or not protocol.usable:
                    protocol = await self._dial()
                protocol.begin(exchange)
                await protocol.send_rest(rest, owner.done, on_piece)
            await owner.done
        except asyncio.CancelledError:
            self.close()
            raise
        return response

    async def open_tunnel(self, data: bytes, on_data: Callable[[bytes], None]) -> asyncio.Transport:
        """Dial a connection whose bytes are passed on unparsed, and send the first ones."""
        protocol = await self._dial()
        protocol.on_raw = on_data
        protocol.transport.write(data)
        return protocol.transport

    async def wait_closed(self) -> None:
        """Wait until the server has closed the connection."""
        if self._protocol is not None:
            await self._protocol.closed.wait()

    def end_output(self) -> None:
        """Pass on that the client sends no more, so that the server may cancel its request."""
        if self._protocol is not None:
            self._protocol.end_output()

    def close(self) -> None:
        """Close the connection at once, without a call of the exchange's owner."""
        if self._dialing is not None:
            self._dialing.cancel()
            self._dialing = None
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.abort()

    async def _dial(self) -> _ServerProtocol:
        # By shape: a compiled class cannot extend asyncio's.
        make = cast("Callable[[], asyncio.Protocol]", partial(_ServerProtocol, self.on_done))
        try:
            found: Any = await self._dialer.connect(make, self._tls)
        except OSError as error:
            why = "timed out" if isinstance(error, TimeoutError) else reason(error)
            raise NoResponseError(f"cannot connect to {self._address}: {why}") from error
        protocol: _ServerProtocol = found
        self._protocol = protocol
        if self._is_paused:
            protocol.set_paused(True)
        return protocol

    async def _dial_and_send(self, exchange: HttpExchange) -> None:
        try:
            protocol = await self._dial()
        except NoResponseError as error:
            exchange.owner.on_done(exchange.response, error)
            return
        protocol.begin(exchange)


class _Awaited(ExchangeOwner):
    """Owner of an exchange that a coroutine waits for."""

    def __init__(self, on_data: Callable[[bytes], None] | None) -> None:
        self._on_data = on_data
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def takes_interim(self) -> bool:
        return self._on_data is not None

    def on_response(self, response: ResponseReader) -> bool:  # noqa: ARG002
        return self._on_data is not None

    def on_data(self, data: bytes) -> None:
        if self._on_data is not None:
            self._on_data(data)

    def on_done(self, response: ResponseReader, error: Exception | None) -> None:  # noqa: ARG002
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class _ServerProtocol:
    """One connection, as asyncio's transports call it."""

    def __init__(self, on_done: Callable[[HttpExchange, Exception | None], None]) -> None:
        self.usable = False
        self.closed = asyncio.Event()
        # Set for a tunnel.
        self.on_raw: Callable[[bytes], None] | None = None
        self._on_done = on_done
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._exchange: HttpExchange | None = None
        # The response's bytes before its final head.
        self._held: list[bytes] = []
        # The body of the request that is sent as it arrives.
        self._arriving: asyncio.Queue[bytes | None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def transport(self) -> asyncio.Transport:
        """The transport; set before the protocol is used."""
        assert self._transport is not None
        return self._transport

    def begin(self, exchange: HttpExchange) -> None:
        """Send a request, or its first part."""
        self._exchange = exchange
        self._held.clear()
        parts = exchange.parts
        transport = self.transport
        if len(parts) == 1 and isinstance(parts[0], bytes):
            write_at_once(transport, self._descriptor, parts[0])
        elif sum(map(len, parts)) <= _JOIN_BYTES:
            write_at_once(transport, self._descriptor, b"".join(parts))
        else:
            transport.writelines(parts)

    async def send_rest(
        self,
        request: HttpRequest,
        done: asyncio.Future[None],
        on_piece: Callable[[], None] | None,
    ) -> None:
        """Send the rest of a request's body as it arrives."""
        arriving = request.arriving
        assert arriving is not None
        self._arriving = arriving
        while (piece := await arriving.get()) is not None:
            if on_piece is not None:
                on_piece()
            if done.done():
                # The server has responded early, and will close the connection.
                self.usable = False
                return
            await self._writable.wait()
            self.transport.write(request.encode_piece(piece))
        if not self.closed.is_set():
            self.transport.write(request.end())

    def end_output(self) -> None:
        """Half-close the connection if a request is in flight."""
        if self._exchange is not None and not self.transport.is_closing():
            self.usable = False
            # TLS has no half-closed connections.
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def set_paused(self, paused: bool) -> None:
        """Stop reading, or continue."""
        if not self.transport.is_closing():
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once, and forget the exchange."""
        self.usable = False
        self._exchange = None
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to take requests."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._descriptor = descriptor_of(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        """Read and pass on a part of a response."""
        if self.on_raw is not None:
            self.on_raw(data)
            return
        exchange = self._exchange
        if exchange is None:
            # No request is in flight, so these bytes are no response.
            self.usable = False
            self.transport.abort()
            return
        if exchange.passes_on:
            exchange.owner.on_data(data)
        response = exchange.response
        response.feed(data)
        if not exchange.is_decided:
            self._held.append(data)
            if response.status or not response.is_http:
                self._decide(exchange)
            elif data.endswith(_HEAD_END) and exchange.owner.takes_interim:
                exchange.may_repeat = False
                exchange.owner.on_data(self._take_held())
        if response.complete:
            self.usable = self.usable and response.keeps_alive
            self._finish(None)
            if not self.usable:
                self.transport.close()

    def eof_received(self) -> bool:
        """Close the connection, as its server does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange in flight."""
        self.usable = False
        self.closed.set()
        self._writable.set()
        if self._arriving is not None:
            # The client may not send the rest of the body before it has the whole early response.
            self._arriving.put_nowait(None)
        exchange = self._exchange
        if exchange is None:
            return
        why = "connection lost" if exc is None else f"connection lost: {reason(exc)}"
        if not exchange.is_decided:
            exchange.may_repeat = exchange.may_repeat and not self._held
            self._finish(NoResponseError(why))
        elif exchange.response.is_http and exchange.response.ends_with_connection:
            self._finish(None)
        else:
            self._finish(CutOffError(why))

    def pause_writing(self) -> None:
        """Send no more of a request whose body arrives."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue to send it."""
        self._writable.set()

    def _decide(self, exchange: HttpExchange) -> None:
        exchange.is_decided = True
        exchange.passes_on = exchange.owner.on_response(exchange.response)
        held = self._take_held()
        if exchange.passes_on:
            exchange.owner.on_data(held)

    def _take_held(self) -> bytes:
        held, self._held = self._held, []
        return held[0] if len(held) == 1 else b"".join(held)

    def _finish(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._on_done(exchange, error)
