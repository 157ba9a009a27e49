"""HTTP/2 connections on asyncio transports: reading, and back-pressure."""

# layout: not compiled, extends asyncio.Protocol
# layout: not covered, has a socket, integration tests reach it

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any, cast

from nereid.rpc.http2.writer import Http2Writer

if TYPE_CHECKING:
    from nereid.rpc.http2.connection import Http2Connection

_WRITE_HIGH_WATER_BYTES = 1 << 20


class Http2Protocol(asyncio.Protocol):
    """One connection on one transport. Derived classes set `http2` before connection_made()."""

    http2: Http2Connection[Any]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.writer = Http2Writer(loop)
        self.secure = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the writer, or abort a TLS connection that did not negotiate h2."""
        # uvloop's transports do not derive from asyncio's.
        transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.writer.open(transport, self.http2)
        tls = transport.get_extra_info("ssl_object")
        self.secure = tls is not None
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (for the owner)
        """Stop writing, because the connection is closed."""
        self.writer.connection_lost()

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and write the replies to them at once."""
        self.writer.begin_turn()
        unread = self.http2.receive_data(data)
        self.writer.end_turn()
        if unread:
            self._read_on_later()

    def pause_writing(self) -> None:
        """Stop writing because the transport's buffer is full."""
        self.writer.set_paused(True)

    def resume_writing(self) -> None:
        """Continue to write after pause_writing()."""
        self.writer.set_paused(False)

    def on_timer(self) -> None:
        """Run the connection's timers about once a second, and abort if the peer is dead."""
        if not self.http2.on_timer(time.monotonic()):
            self.abort()

    def close(self) -> None:
        """Write all output, then close. A peer that does not read is disconnected soon after."""
        self.writer.close()

    def abort(self) -> None:
        """Close the transport at once; output that was not written is lost."""
        self.writer.abort()

    def _read_on_later(self) -> None:
        """Process the remaining bytes after other connections. Until then, read nothing more."""
        transport = self.writer.transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        transport = self.writer.transport
        if transport is None or transport.is_closing():
            return
        self.writer.begin_turn()
        unread = self.http2.receive_data(b"")
        self.writer.end_turn()
        if unread:
            self._loop.call_soon(self._read_on)
        elif not transport.is_closing():
            transport.resume_reading()
