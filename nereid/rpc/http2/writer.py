"""Writer of an HTTP/2 connection's output: one write for each turn of the event loop."""

# layout: not covered, has a transport, integration tests reach it

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once

if TYPE_CHECKING:
    import asyncio

    from nereid.rpc.http2.connection import Http2Connection

# Larger output is written in parts, because copying it is slower.
_JOIN_BYTES: Final = 1 << 18
# The peer may read our GOAWAY for this long before the connection is closed.
_LINGER_S: Final = 1.0


class MessageStream(Protocol):
    """Stream that carries messages."""

    def send(self, message: bytes) -> None:
        """Send a message."""


class Http2Writer:
    """Writer of one connection on one transport.

    It is separate from Http2Protocol, which extends a class of asyncio and so cannot be compiled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._http2: Http2Connection[Any] | None = None
        # `None` while not connected.
        self.transport: asyncio.Transport | None = None
        self._descriptor = -1
        # True if this turn will end with a write anyway.
        self._scheduled = False
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

    def abort(self) -> None:
        """Close the transport at once; output that was not written is lost."""
        if self.transport is not None:
            self.transport.abort()

    def begin_turn(self) -> None:
        """Begin a turn. Output from now on is written by end_turn()."""
        self._scheduled = True

    def wake(self) -> None:
        """Schedule a write at the end of this turn, because there is output."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.end_turn)

    def write_through(self, stream: MessageStream, message: bytes) -> None:
        """Send a message on a stream, and write the output before this turn ends."""
        scheduled, self._scheduled = self._scheduled, True
        stream.send(message)
        self.end_turn()
        self._scheduled = scheduled

    def flush(self) -> None:
        """Write all output at once."""
        scheduled = self._scheduled
        self.end_turn()
        self._scheduled = scheduled

    def end_turn(self) -> None:
        """Write all output, and close the transport after the connection's last output."""
        transport, http2 = self.transport, self._http2
        if transport is None or http2 is None:
            return
        sender = http2.sender
        # Checking the two fields here saves a call of data_to_send().
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
        # If new streams are refused, the drain ends with the last response.
        if (
            self._closing
            or control.error is not None
            or (control.refusing and not http2.streams.open)
        ) and not transport.is_closing():
            transport.close()
            self._loop.call_later(_LINGER_S, transport.abort)
