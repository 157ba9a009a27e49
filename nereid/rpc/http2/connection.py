"""One HTTP/2 connection (RFC 9113) of a server or client, put together from its parts.

    bytes in -> Receiver -> ControlFrames     -> Sender -> bytes out
                         -> ConnectionHandler ->
                         -> ContentReader

A transport feeds `receive_data`, writes what `data_to_send` returns, and calls `on_timer`. The
module does no I/O and reads no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from nereid.rpc.http2 import frames
from nereid.rpc.http2.control_frames import ControlFrames
from nereid.rpc.http2.frames import Code, Http2ConnectionError
from nereid.rpc.http2.receiver import Receiver
from nereid.rpc.http2.sender import Sender
from nereid.rpc.http2.stream import S, StreamTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.http2.handler import ConnectionHandler, ContentReader
    from nereid.rpc.http2.limits import Limits


class Http2Connection(Generic[S]):
    """Connection of a server or client. For speed, handlers use its parts directly."""

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        limits: Limits,
        handler: ConnectionHandler[S],
        content: ContentReader[S],
        *,
        server: bool,
        wake: Callable[[], None],
        on_queued: Callable[[int], None] | None = None,
    ) -> None:
        """Create the connection, with its first frames in the output."""
        self.streams: StreamTable[S] = StreamTable()
        self.sender: Sender[S] = Sender(
            self.streams,
            wake=wake,
            on_half_closed=handler.on_half_closed,
            on_unread=self._on_unread,
            on_queued=on_queued,
        )
        self.control: ControlFrames[S] = ControlFrames(limits, self.sender, handler, server=server)
        self.receiver: Receiver[S] = Receiver(limits, self.sender, self.control, handler, content)
        self.sender.out.append(_opening(limits, server=server))

    def receive_data(self, data: bytes) -> bool:
        """Process received bytes; return True if frames are left for another turn of the loop.

        After True, call this with no bytes in later turns until it returns False. Only then pass
        further bytes.
        """
        control = self.control
        if control.error is not None:
            return False
        control.keepalive.received = True
        try:
            return self.receiver.feed(data)
        except Http2ConnectionError as error:
            # The error is kept, and its traceback would keep the received bytes.
            control.fail(error.with_traceback(None))
            return False

    def data_to_send(self) -> list[bytes | memoryview]:
        """Return the next output. Call again until it is empty or the socket is full."""
        sender = self.sender
        if sender.ready and not sender.blocked:
            sender.pump()
            if self.receiver.window_withheld:
                self.receiver.reopen_connection_window()
        out, sender.out = sender.out, []
        return out

    def on_timer(self, now: float) -> bool:
        """Run the timers; return False if the peer is dead. Call this about once a second."""
        if self.receiver.window_withheld:
            # Calls may have ended without output, so reopen the window here as well.
            self.receiver.reopen_connection_window()
        return self.control.on_timer(now)

    def connection_lost(self) -> list[S]:
        """Handle the loss of the transport; return the open streams."""
        if self.control.error is None:
            self.control.error = Http2ConnectionError(Code.CONNECT_ERROR, "connection lost")
        streams = list(self.streams.open.values())
        for stream in streams:
            self.sender.forget_stream(stream)
        self.sender.out = []
        return streams

    @property
    def error(self) -> Http2ConnectionError | None:
        """Error that ended the connection; None while the connection works."""
        return self.control.error

    def _on_unread(self) -> None:
        error = Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "responses are not read")
        self.control.fail(error)


def _opening(limits: Limits, *, server: bool) -> bytes:
    """Return our settings, and a WINDOW_UPDATE that sets the connection's window."""
    values = {
        frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        frames.MAX_FRAME_SIZE: limits.max_frame_bytes,
        frames.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
    }
    if server:
        values[frames.MAX_CONCURRENT_STREAMS] = limits.max_concurrent_streams
    else:
        values[frames.ENABLE_PUSH] = 0
    growth = limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES
    opening = frames.settings(values) + frames.window_update(0, growth)
    return opening if server else frames.PREFACE + opening
