"""Runs an HTTP/2 connection on an asyncio transport: bytes in, gathered bytes out, back-pressure.

What is sent within one turn of the event loop leaves in one write, unless it is written through.
Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any, cast

from nereid.rpc.net.direct_writes import descriptor_of, write_at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.http2.connection import Http2Connection

_WRITE_HIGH_WATER_BYTES = 1 << 20
# Joined below this; above, copying costs more than the vectors save.
_JOIN_BYTES = 1 << 18
# For a peer to read our GOAWAY.
_LINGER_S = 1.0


class Http2Protocol(asyncio.Protocol):
    """One connection on one transport; extended by servers and channels, which make `http2` before
    `connection_made` is called here.
    """

    http2: Http2Connection[Any]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._scheduled = False
        self._paused = False
        self._closing = False
        # Over TLS.
        self.secure = False

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self._descriptor = descriptor_of(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wake()
        tls = transport.get_extra_info("ssl_object")
        self.secure = tls is not None
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.abort()

    def data_received(self, data: bytes) -> None:
        # Replies given while parsing leave below, without a turn of their own.
        self._scheduled = True
        unread = self.http2.receive_data(data)
        self._flush()
        if unread:
            self._read_on_later()

    def pause_writing(self) -> None:
        self._paused = True
        self.http2.sender.set_blocked(True)

    def resume_writing(self) -> None:
        self._paused = False
        self.http2.sender.set_blocked(False)

    # --- for the connection and its owner

    def wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def write_through(self, send: Callable[[bytes], None], message: bytes) -> None:
        """Call send, and write what it sends at once rather than at the end of this turn."""
        scheduled, self._scheduled = self._scheduled, True
        send(message)
        self._flush()
        self._scheduled = scheduled

    def flush(self) -> None:
        """Write what there is at once rather than at the end of this turn."""
        scheduled = self._scheduled
        self._flush()
        self._scheduled = scheduled

    def on_timer(self) -> None:
        """To be called about once a second."""
        if not self.http2.on_timer(time.monotonic()):
            self.abort()

    def close(self) -> None:
        """Write what there is, then close; a peer that does not read is cut off soon after."""
        self._closing = True
        self.wake()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- inside

    def _read_on_later(self) -> None:
        """Let other connections have their turn first. Nothing more is read meanwhile."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._scheduled = True
        unread = self.http2.receive_data(b"")
        self._flush()
        if unread:
            self._loop.call_soon(self._read_on)
        elif not transport.is_closing():
            transport.resume_reading()

    def _flush(self) -> None:
        transport = self._transport
        http2 = self.http2
        if transport is None:
            return
        sender = http2.sender
        # What these say, data_to_send() would find as well, for the price of a call.
        while sender.out or sender.ready:
            out = http2.data_to_send()
            if not out or transport.is_closing():
                break
            self._write(transport, out)
            if self._paused:
                break
        self._scheduled = False
        control = http2.control
        if self._closing or control.error is not None:
            self._close_transport(transport)
        elif control.refusing and not http2.streams.open:
            # Drained: the last response is out.
            self._close_transport(transport)

    def _write(self, transport: asyncio.Transport, out: list[bytes | memoryview]) -> None:
        if sum(map(len, out)) <= _JOIN_BYTES:
            write_at_once(transport, self._descriptor, b"".join(out))
        elif len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)

    def _close_transport(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.close()
            self._loop.call_later(_LINGER_S, transport.abort)
