"""Writer of an HTTP/2 connection's output to its transport.

All output of one turn of the event loop leaves in one write, unless a caller asks for a write at
once.
"""

# layout: not covered, has a transport, integration tests reach it

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from nereid.rpc.http2.connection import Http2Connection

# Output up to this size is joined and written at once; for larger output, copying is slower than
# writing the parts.
_JOIN_BYTES: Final = 1 << 18
# Seconds for which a peer may read our GOAWAY before the connection is closed.
_LINGER_S: Final = 1.0


class Http2Writer:
    """Writer of one connection on one transport.

    The writer writes nothing before open() and after connection_lost(). Http2Protocol uses the
    writer. The two classes are separate because Http2Protocol extends a class of asyncio, so it
    cannot be compiled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._http2: Http2Connection[Any] | None = None
        # Transport of the connection; `None` while it is not connected.
        self.transport: asyncio.Transport | None = None
        self._descriptor = -1
        # True if output is going to be written at the end of this turn anyway.
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
        """Stop writing while the transport's buffer is full, or continue."""
        self._paused = paused
        if self._http2 is not None:
            self._http2.sender.set_blocked(paused)

    def close(self) -> None:
        """Write all output, then close. A peer that does not read is disconnected soon after."""
        self._closing = True
        self.wake()

    # --- turns

    def begin_turn(self) -> None:
        """Begin a turn. Output from now on is written by end_turn()."""
        self._scheduled = True

    def wake(self) -> None:
        """Schedule a write at the end of this turn, because there is output."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.end_turn)

    def write_through(self, send: Callable[[bytes], None], message: bytes) -> None:
        """Call `send` with the message, and write the resulting output before this turn ends."""
        scheduled, self._scheduled = self._scheduled, True
        send(message)
        self.end_turn()
        self._scheduled = scheduled

    def flush(self) -> None:
        """Write all output at once, not at the end of this turn."""
        scheduled = self._scheduled
        self.end_turn()
        self._scheduled = scheduled

    def end_turn(self) -> None:
        """Write all output. If the connection will have no more output, close the transport."""
        transport, http2 = self.transport, self._http2
        if transport is None or http2 is None:
            return
        sender = http2.sender
        # data_to_send() checks the same two fields. Checking them here first saves a call.
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
        # A connection that refuses new streams is drained when the last response has been written.
        if (
            self._closing
            or control.error is not None
            or (control.refusing and not http2.streams.open)
        ) and not transport.is_closing():
            transport.close()
            self._loop.call_later(_LINGER_S, transport.abort)
