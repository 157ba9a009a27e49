"""Output of an HTTP/2 connection, as writes to its transport.

All output of one turn of the event loop leaves in one write, unless it is written through.
"""

# layout: not covered, has a transport, integration tests reach it

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from nereid.rpc.http2.connection import Http2Connection

# Size up to which output is joined; above it, copying costs more than the vectors save.
_JOIN_BYTES: Final = 1 << 18
# Time for a peer to read our GOAWAY.
_LINGER_S: Final = 1.0


class Http2Writer:
    """Writer of one connection on one transport.

    Writes nothing before open() and after connection_lost(). This is a part of Http2Protocol, which
    cannot be compiled because of asyncio's base class.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._http2: Http2Connection[Any] | None = None
        # Transport of the connection; `None` while it is not connected.
        self.transport: asyncio.Transport | None = None
        self._descriptor = -1
        # True if output leaves at the end of this turn anyway.
        self._scheduled = False
        # True if the transport's buffer is full.
        self._paused = False
        self._closing = False

    def open(self, transport: asyncio.Transport, http2: Http2Connection[Any]) -> None:
        """Begin to write to a transport."""
        self._http2 = http2
        self.transport = transport
        self._descriptor = descriptor_of(transport)
        self.wake()

    def connection_lost(self) -> None:
        """Stop writing: the transport is closed."""
        self.transport = None

    def set_paused(self, paused: bool) -> None:
        """Stop writing while the transport's buffer is full, or go on."""
        self._paused = paused
        if self._http2 is not None:
            self._http2.sender.set_blocked(paused)

    def close(self) -> None:
        """Write all output, then close; a peer that does not read is cut off soon after."""
        self._closing = True
        self.wake()

    # --- turns

    def begin_turn(self) -> None:
        """Begin a turn: output from now on leaves with end_turn()."""
        self._scheduled = True

    def wake(self) -> None:
        """Schedule a write at the end of the turn, because there is output."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.end_turn)

    def write_through(self, send: Callable[[bytes], None], message: bytes) -> None:
        """Call `send`, and write its output at once rather than at the end of this turn."""
        scheduled, self._scheduled = self._scheduled, True
        send(message)
        self.end_turn()
        self._scheduled = scheduled

    def flush(self) -> None:
        """Write all output at once rather than at the end of this turn."""
        scheduled = self._scheduled
        self.end_turn()
        self._scheduled = scheduled

    def end_turn(self) -> None:
        """Write all output, and close the transport if that was the last of it."""
        transport, http2 = self.transport, self._http2
        if transport is None or http2 is None:
            return
        sender = http2.sender
        # data_to_send() checks the same two fields; checking them here first saves a call.
        while sender.out or sender.ready:
            out = http2.data_to_send()
            if not out or transport.is_closing():
                break
            if sum(len(part) for part in out) <= _JOIN_BYTES:
                write_at_once(transport, self._descriptor, b"".join(out))
            elif len(out) == 1:
                transport.write(out[0])
            else:
                transport.writelines(out)
            if self._paused:
                break
        self._scheduled = False
        control = http2.control
        # A connection that refuses streams is drained when the last response is out.
        if (
            self._closing
            or control.error is not None
            or (control.refusing and not http2.streams.open)
        ) and not transport.is_closing():
            transport.close()
            self._loop.call_later(_LINGER_S, transport.abort)
