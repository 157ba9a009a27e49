"""One connection to a server over HTTP/1.1, with one request in flight."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import httptools

from nereid.rpc.net.dialing import Dialer
from nereid.rpc.net.tls_files import reason
from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once
from nereid_adopt.proxy.held_bytes import NO_SPACE
from nereid_perf.wire.response_head import ResponseParser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nereid.rpc.net.tls_files import Tls
    from nereid_adopt.proxy.held_bytes import Holder

TOO_LARGE: Final = "the response is too large"
CONNECT_TIMEOUT_S: Final = 5.0
_JOIN_BYTES: Final = 1 << 18
_FINAL: Final = 200


class NoResponseError(Exception):
    """Raised if a server has sent no byte of a response; the text says why."""


class CutOffError(Exception):
    """Raised if a response ends before it is complete."""


@dataclass(slots=True)
class HttpExchange:
    """One request and its response.

    on_data: gets the response's bytes as they arrive, from its head on. before_data: called once
    before. refuses: whether a
    response of this status is not passed on, in which case it is only kept.
    """

    parts: list[bytes]
    is_head: bool = False
    rest: AsyncIterator[bytes] | None = None
    on_data: Callable[[bytes], None] | None = None
    refuses: Callable[[int], bool] | None = None
    before_data: Callable[[], None] | None = None
    max_body_bytes: int = 1 << 31
    held: Holder | None = None
    # Why the response's body is not kept.
    why_not_kept: str = ""
    parser: ResponseParser = field(default_factory=ResponseParser)
    body_bytes: int = 0
    passed_on: bool = False
    refused: bool = False
    is_http: bool = True

    @property
    def body(self) -> list[bytes] | None:
        """The response's body in pieces, or `None` if it was not kept."""
        return None if self.why_not_kept else self.parser.body


class HttpServerConnection:
    """A connection that is dialled when it is needed, and again if the server has closed it."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        self._dialer = Dialer(address, CONNECT_TIMEOUT_S)
        self._address = address
        self._tls = tls
        self._protocol: _Protocol | None = None
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

    async def exchange(self, exchange: HttpExchange) -> None:
        """Send a request and pass on the response. Raises NoResponseError, CutOffError."""
        if self.is_open and self._protocol is not None:
            try:
                await self._protocol.run(exchange)
                return
            except NoResponseError:
                # The server may have closed the idle connection before the request arrived.
                if exchange.rest is not None:
                    raise
                exchange.parser = ResponseParser()
        try:
            self._protocol = await self._dialer.connect(_Protocol, self._tls)
        except OSError as error:
            why = "timed out" if isinstance(error, TimeoutError) else reason(error)
            raise NoResponseError(f"cannot connect to {self._address}: {why}") from error
        if self._is_paused:
            self._protocol.set_paused(True)
        await self._protocol.run(exchange)

    async def open_tunnel(self, data: bytes, on_data: Callable[[bytes], None]) -> asyncio.Transport:
        """Dial a connection whose bytes are passed on unparsed, and send the first ones."""
        try:
            protocol = await self._dialer.connect(_Protocol, self._tls)
        except OSError as error:
            raise NoResponseError(str(error)) from error
        self._protocol = protocol
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
        """Close the connection at once."""
        if self._protocol is not None:
            self._protocol.transport.abort()
            self._protocol = None


class _Protocol(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self.usable = False
        self.closed = asyncio.Event()
        # Set for a tunnel.
        self.on_raw: Callable[[bytes], None] | None = None
        self._descriptor = -1
        self._exchange: HttpExchange | None = None
        self._done: asyncio.Future[None] | None = None
        self._held: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()

    async def run(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._done = asyncio.get_running_loop().create_future()
        self._held = []
        parts = exchange.parts
        if sum(map(len, parts)) <= _JOIN_BYTES:
            write_at_once(self.transport, self._descriptor, b"".join(parts))
        else:
            self.transport.writelines(parts)
        try:
            if exchange.rest is not None:
                await self._send_rest(exchange.rest, self._done)
            await self._done
        except asyncio.CancelledError:
            self.usable = False
            self.transport.abort()
            raise
        finally:
            self._exchange = self._done = None

    def end_output(self) -> None:
        if self._exchange is not None and not self.transport.is_closing():
            self.usable = False
            if self.transport.can_write_eof():
                self.transport.write_eof()

    async def _send_rest(self, rest: AsyncIterator[bytes], done: asyncio.Future[None]) -> None:
        async for piece in rest:
            if done.done():
                # The server has responded early, and will close the connection.
                self.usable = False
                return
            await self._writable.wait()
            self.transport.write(piece)

    def set_paused(self, paused: bool) -> None:
        if not self.transport.is_closing():
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self._descriptor = descriptor_of(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self.on_raw is not None:
            self.on_raw(data)
            return
        exchange = self._exchange
        if exchange is None:
            # No request is in flight, so these bytes are no response.
            self.usable = False
            self.transport.abort()
            return
        if exchange.passed_on and exchange.on_data is not None:
            exchange.on_data(data)
        elif not exchange.refused:
            self._held.append(data)
        if exchange.is_http:
            try:
                exchange.parser.feed(data)
            except httptools.HttpParserError:
                # Passed on until the connection ends: the client may understand it.
                exchange.is_http = False
        parser = exchange.parser
        if not (exchange.passed_on or exchange.refused) and (
            parser.status >= _FINAL or not exchange.is_http
        ):
            self._decide(exchange)
        self._bound_body(exchange)
        if exchange.is_http and (parser.complete or (exchange.is_head and parser.status >= _FINAL)):
            self.usable = parser.keeps_alive
            self._finish(None)
            if not self.usable:
                self.transport.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self.closed.set()
        self._writable.set()
        exchange = self._exchange
        if exchange is None:
            return
        why = "" if exc is None else f": {reason(exc)}"
        parser = exchange.parser
        if not (exchange.passed_on or exchange.refused):
            self._finish(NoResponseError(f"connection lost{why}"))
        elif exchange.is_http and parser.content_length < 0 and not parser.keeps_alive:
            # A body without a length ends with its connection.
            self._finish(None)
        else:
            self._finish(CutOffError(f"connection lost{why}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _decide(self, exchange: HttpExchange) -> None:
        held, self._held = self._held, []
        if exchange.refuses is not None and exchange.refuses(exchange.parser.status):
            exchange.refused = True
            return
        exchange.passed_on = True
        if exchange.before_data is not None:
            exchange.before_data()
        if exchange.on_data is not None:
            exchange.on_data(b"".join(held))

    def _bound_body(self, exchange: HttpExchange) -> None:
        pieces = exchange.parser.body
        if pieces and not exchange.why_not_kept:
            before, exchange.body_bytes = exchange.body_bytes, sum(map(len, pieces))
            if exchange.body_bytes > exchange.max_body_bytes:
                exchange.why_not_kept = TOO_LARGE
            elif exchange.held is not None and not exchange.held.add(exchange.body_bytes - before):
                exchange.why_not_kept = NO_SPACE
        if exchange.why_not_kept:
            pieces.clear()
            if exchange.held is not None:
                exchange.held.release()

    def _finish(self, error: Exception | None) -> None:
        done = self._done
        if done is not None and not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
