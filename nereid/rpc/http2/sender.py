"""Sending side of an HTTP/2 connection: windows, queues, and fair turns between streams.

Content goes to `out` if the windows allow it, otherwise to its stream's queue. The stream's owner
has to limit that queue.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic

from nereid.rpc.http2 import frames
from nereid.rpc.http2.frames import Code, Http2ConnectionError, pack_frame_head
from nereid.rpc.http2.stream import AFTER_END_SENT, AFTER_RESET, CLOSED, S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.rpc.http2.stream import StreamTable

LOW_WATER_BYTES: Final = 65_536
# Bytes that pump() moves at once: enough to keep a socket busy, and fair to other streams.
_PUMP_BYTES: Final = 262_144
# Content up to this size is joined before it is queued. Also the maximum 16-bit size in a DATA
# frame's header.
MAX_DIRECT_BYTES: Final = 65_535
# Limit for frames other than DATA that wait for a peer that does not read.
_MAX_UNREAD_BYTES: Final = 1 << 20
# Table size update to zero.
_NO_HEADER_TABLE: Final = b"\x20"
_DEFAULT_HEADER_TABLE_BYTES: Final = 4096


class Sender(Generic[S]):
    """Output of one connection. Its state is public for callers that cannot afford a call.

    Content of up to max_direct_bytes may go directly to `out` if the windows allow it; 0 while the
    socket is blocked.
    """

    def __init__(
        self,
        streams: StreamTable[S],
        *,
        wake: Callable[[], None],
        on_half_closed: Callable[[S], None],
        on_unread: Callable[[], None],
        on_queued: Callable[[int], None] | None = None,
    ) -> None:
        """Create a sender without output.

        on_half_closed: our side of a stream ended before the peer's. on_unread: too much output
        waits for a peer that does not read. on_queued: gets the total bytes in all queues.
        """
        self.out: list[bytes | memoryview] = []
        self.wake = wake
        self.send_window = frames.DEFAULT_WINDOW_BYTES
        # Bytes that the window has allowed since the start.
        self._granted_bytes = frames.DEFAULT_WINDOW_BYTES
        self.peer_initial_window = frames.DEFAULT_WINDOW_BYTES
        self.max_direct_bytes = frames.DEFAULT_FRAME_BYTES
        self.blocked = False
        # Stream id -> stream with queued content and an open window, in the order of turns.
        self.ready: dict[int, S] = {}
        self.streams = streams
        self._on_half_closed = on_half_closed
        self._on_unread = on_unread
        self._on_queued = on_queued
        self._queued_bytes = 0
        self._peer_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._unread_bytes = 0
        # Table size update to send before the next header block; empty for none. Due after the peer
        # has shrunk its header table, which we do not use.
        self._block_prefix = b""
        self._header_table_off = False

    def write(self, data: bytes) -> None:
        """Send frames to which flow control does not apply."""
        if not self.out:
            self.wake()
        self.out.append(data)
        if self.blocked:
            self._unread_bytes += len(data)
            if self._unread_bytes > _MAX_UNREAD_BYTES:
                self._on_unread()

    def take_window(self, stream: S, size: int) -> bool:
        """Return whether content may go directly to `out`; if so, take it from both windows."""
        if (
            stream.queue is not None
            or size > self.max_direct_bytes
            or size > stream.send_window
            or size > self.send_window
        ):
            return False
        stream.send_window -= size
        self.send_window -= size
        return True

    def write_headers(self, stream_id: int, block: bytes, flags: int = 0) -> None:
        """Send a header block on a stream."""
        self.write(self._header_frames(stream_id, block, flags))

    def enqueue(self, stream: S, parts: Sequence[bytes | memoryview]) -> None:
        """Queue content of a stream until its windows allow it and it is the stream's turn."""
        queue = stream.queue
        if queue is None:
            queue = stream.queue = deque()
        size = sum(map(len, parts))
        if size <= MAX_DIRECT_BYTES:
            queue.append(memoryview(b"".join(parts)))
        else:
            queue.extend(memoryview(part) for part in parts if part)
        stream.queued_bytes += size
        self._count_queued(size)
        if stream.queued_bytes > LOW_WATER_BYTES:
            stream.above_low_water = True
        self.make_ready(stream)

    def end_stream(self, stream: S, trailers: bytes = b"") -> None:
        """End our side of a stream once its queue is empty; `trailers` may be empty."""
        if stream.queue is None:
            self.write(self._end_frame(stream, trailers))
            self.close_local(stream)
        else:
            stream.trailers = trailers

    def reset_stream(self, stream: S, code: int) -> None:
        """Close both sides of a stream at once, and send RST_STREAM."""
        self.forget_stream(stream)
        self.refuse_stream(stream.id, code)

    def refuse_stream(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM for a stream that has no record."""
        self.streams.remember_reset(stream_id)
        self.write(frames.rst_stream(stream_id, code))

    def forget_stream(self, stream: S) -> None:
        """Remove the record of a stream whose two sides are closed, and drop its queue."""
        self.streams.open.pop(stream.id, None)
        stream.queue = None
        self._count_queued(-stream.queued_bytes)
        stream.queued_bytes = 0
        stream.trailers = None
        self.ready.pop(stream.id, None)
        stream.state = AFTER_RESET[stream.state]
        # The receiver still refers to the stream while a frame arrives, so drop the kept input.
        stream.discard_partial_input()

    def set_blocked(self, blocked: bool) -> None:
        """Set whether the socket's buffer is full."""
        self.blocked = blocked
        self._unread_bytes = 0
        self._update_max_direct_bytes()
        if not blocked and (self.ready or self.out):
            self.wake()

    def set_peer_frame_bytes(self, size: int) -> None:
        """Set the maximum size of a frame that the peer accepts."""
        self._peer_frame_bytes = size
        self._update_max_direct_bytes()

    def set_peer_header_table_bytes(self, size: int) -> None:
        """Set the size of the peer's header table, which we do not use.

        The next header block must acknowledge a smaller size (RFC 7541 4.2).
        """
        if size < _DEFAULT_HEADER_TABLE_BYTES and not self._header_table_off:
            self._header_table_off = True
            self._block_prefix = _NO_HEADER_TABLE
            self._update_max_direct_bytes()

    @property
    def sent_bytes(self) -> int:
        """Bytes of content sent on all streams."""
        return self._granted_bytes - self.send_window

    def grow_connection_window(self, increment: int) -> None:
        """Add to the connection's window; raise Http2ConnectionError if it overflows."""
        self.send_window += increment
        self._granted_bytes += increment
        if self.send_window > frames.MAX_WINDOW_BYTES:
            raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "connection window overflow")
        if self.ready and not self.blocked:
            self.wake()

    def change_initial_window(self, value: int) -> None:
        """Change the windows of new and open streams; raise Http2ConnectionError on overflow."""
        change = value - self.peer_initial_window
        self.peer_initial_window = value
        for stream in self.streams.open.values():
            stream.send_window += change
            if stream.send_window > frames.MAX_WINDOW_BYTES:
                raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "stream window overflow")
            self.make_ready(stream)

    def make_ready(self, stream: S) -> None:
        """Let a stream take turns if it has queued content and its window is open."""
        if stream.queue is not None and stream.send_window > 0:
            self.ready[stream.id] = stream
            if not self.blocked and self.send_window > 0:
                self.wake()

    def pump(self) -> None:
        """Move queued content to `out`. The streams take turns, one frame each."""
        budget = _PUMP_BYTES
        ready = self.ready
        drained: list[S] = []
        while ready and budget > 0 and self.send_window > 0:
            stream_id = next(iter(ready))
            stream = ready.pop(stream_id)
            if stream.send_window <= 0:
                # The window shrank meanwhile. A WINDOW_UPDATE will make the stream ready again.
                continue
            budget -= self._send_frame(stream)
            if stream.queue is not None and stream.send_window > 0:
                ready[stream_id] = stream
            if stream.queue is None or (
                stream.above_low_water and stream.queued_bytes <= LOW_WATER_BYTES
            ):
                stream.above_low_water = False
                drained.append(stream)
        self._count_queued(budget - _PUMP_BYTES)
        # Only now, because an owner may send more content from the callback.
        for stream in drained:
            stream.notify_writable()

    def _count_queued(self, change: int) -> None:
        if change and self._on_queued is not None:
            self._queued_bytes += change
            self._on_queued(self._queued_bytes)

    def _send_frame(self, stream: S) -> int:
        queue = stream.queue
        assert queue is not None
        size = min(
            stream.queued_bytes, stream.send_window, self.send_window, self._peer_frame_bytes
        )
        self.out.append(pack_frame_head(size << 8 | frames.DATA, 0, stream.id))
        left = size
        while left:
            piece = queue[0]
            if len(piece) <= left:
                self.out.append(piece)
                left -= len(piece)
                queue.popleft()
            else:
                self.out.append(piece[:left])
                queue[0] = piece[left:]
                left = 0
        stream.queued_bytes -= size
        stream.send_window -= size
        self.send_window -= size
        if not queue:
            stream.queue = None
            if stream.trailers is not None:
                self.out.append(self._end_frame(stream, stream.trailers))
                stream.trailers = None
                self.close_local(stream)
        return size

    def _header_frames(self, stream_id: int, block: bytes, flags: int) -> bytes:
        """Return a header block as frames. Write them before the next block is encoded.

        They may carry a table size update that the peer has to get first.
        """
        if self._block_prefix:
            block = self._block_prefix + block
            self._block_prefix = b""
            self._update_max_direct_bytes()
        return frames.header_frames(stream_id, block, flags, self._peer_frame_bytes)

    def _end_frame(self, stream: S, trailers: bytes) -> bytes:
        if trailers:
            return self._header_frames(stream.id, trailers, frames.END_STREAM)
        return frames.frame(frames.DATA, frames.END_STREAM, stream.id)

    def close_local(self, stream: S) -> None:
        """Handle the end of our side of a stream, which a frame in the output carries."""
        stream.state = AFTER_END_SENT[stream.state]
        if stream.state is CLOSED:
            self.streams.open.pop(stream.id, None)
        else:
            self._on_half_closed(stream)

    def _update_max_direct_bytes(self) -> None:
        slow = self.blocked or self._block_prefix
        self.max_direct_bytes = 0 if slow else min(self._peer_frame_bytes, MAX_DIRECT_BYTES)
