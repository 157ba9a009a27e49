"""The sending part of an HTTP/2 connection: windows, queues, and fair turns between streams.

Pure: output gathers in `out` until the transport takes it; `wake` reports that there is some.
Content goes straight to `out` if the windows allow it; otherwise it is queued with its stream, so
that `out` never grows by more than one pump ahead of the socket. The owner of a stream has to bound
its queue.

Knows neither settings nor received frames: windows, frame sizes and a blocked socket are reported
to it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic

from nereid.rpc.http2 import frames
from nereid.rpc.http2.frames import Code, Http2ConnectionError
from nereid.rpc.http2.stream import AFTER_END_SENT, AFTER_RESET, CLOSED, S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.rpc.http2.stream import StreamTable

LOW_WATER_BYTES = 65_536
# Bytes moved to `out` at once: enough to keep a socket busy, few enough to be fair.
_PUMP_BYTES = 262_144
# Size above which content is queued in parts rather than joined, and the maximum that a 16-bit size
# in a DATA frame's header can express.
MAX_QUICK_BYTES = 65_535
# Limit of frames other than DATA (replies to pings and settings, trailers) that wait for a peer
# that does not read.
_MAX_UNREAD_BYTES = 1 << 20
# A header table size update to zero.
_NO_HEADER_TABLE = b"\x20"
_DEFAULT_HEADER_TABLE_BYTES = 4096

_pack_frame_head = frames.FRAME_HEAD.pack


class Sender(Generic[S]):
    """Output of one connection.

    Public state, for callers that cannot afford a method call:
    streams: the connection's table.
    out: frames for the socket.
    send_window: the connection's window.
    quick_bytes: the largest content that may go straight to `out` if both windows allow it; 0 while
        the socket is blocked.
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

        wake: called when `out` is no longer empty.
        on_half_closed: called when our side of a stream ended before the peer's.
        on_unread: called when too much output has gathered for a peer that does not read.
        on_queued: called with the size of all streams' queues in bytes when it changes.
        """
        self.out: list[bytes | memoryview] = []
        self.wake = wake
        self.send_window = frames.DEFAULT_WINDOW_BYTES
        # Sum of all bytes that the connection's window has ever allowed.
        self._granted_bytes = frames.DEFAULT_WINDOW_BYTES
        self.peer_initial_window = frames.DEFAULT_WINDOW_BYTES
        self.quick_bytes = frames.DEFAULT_FRAME_BYTES
        self.blocked = False
        # Streams with queued content and a window for it, in the order of their turns.
        self.ready: dict[int, S] = {}
        self.streams = streams
        self._on_half_closed = on_half_closed
        self._on_unread = on_unread
        self._on_queued = on_queued
        self._queued_bytes = 0
        self._peer_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._unread_bytes = 0
        # Table size update owed to a peer that shrank its header table; it says, before the next
        # block, that we use none of the table.
        self._block_prefix = b""
        self._header_table_off = False

    # --- frames

    def write(self, data: bytes) -> None:
        """Send frames that no window holds back."""
        if not self.out:
            self.wake()
        self.out.append(data)
        if self.blocked:
            self._unread_bytes += len(data)
            if self._unread_bytes > _MAX_UNREAD_BYTES:
                self._on_unread()

    def write_headers(self, stream_id: int, block: bytes, flags: int = 0) -> None:
        """Send a header block on a stream."""
        self.write(self._header_frames(stream_id, block, flags))

    def enqueue(self, stream: S, parts: Sequence[bytes | memoryview]) -> None:
        """Queue content that waits for its windows and its turn."""
        queue = stream.queue
        if queue is None:
            queue = stream.queue = deque()
        size = sum(map(len, parts))
        if size <= MAX_QUICK_BYTES:
            queue.append(memoryview(b"".join(parts)))
        else:
            queue.extend(memoryview(part) for part in parts if part)
        stream.queued_bytes += size
        self._count_queued(size)
        if stream.queued_bytes > LOW_WATER_BYTES:
            stream.above_low_water = True
        self.make_ready(stream)

    def end_stream(self, stream: S, trailers: bytes = b"") -> None:
        """End our side once the queue is empty, with trailers as a header block, or without."""
        if stream.queue is None:
            self.write(self._end_frame(stream, trailers))
            self._close_local(stream)
        else:
            stream.trailers = trailers

    # --- closing streams from either side

    def reset_stream(self, stream: S, code: int) -> None:
        """Close both sides at once, and send RST_STREAM."""
        self.forget_stream(stream)
        self.refuse_stream(stream.id, code)

    def refuse_stream(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM for a stream without a record."""
        self.streams.remember_reset(stream_id)
        self.write(frames.rst_stream(stream_id, code))

    def forget_stream(self, stream: S) -> None:
        """Drop the record and the queue of a stream, both of whose sides are closed."""
        self.streams.open.pop(stream.id, None)
        stream.queue = None
        self._count_queued(-stream.queued_bytes)
        stream.queued_bytes = 0
        stream.trailers = None
        self.ready.pop(stream.id, None)
        stream.state = AFTER_RESET[stream.state]
        # A frame that is still arriving refers to the record, and would keep the earlier input
        # alive.
        stream.discard_partial_input()

    # --- what the socket and the peer allow

    def set_blocked(self, blocked: bool) -> None:
        """Set whether the socket's buffer is full."""
        self.blocked = blocked
        self._unread_bytes = 0
        self._update_quick_bytes()
        if not blocked and (self.ready or self.out):
            self.wake()

    def set_peer_frame_bytes(self, size: int) -> None:
        """Set the maximum size of a frame that the peer accepts."""
        self._peer_frame_bytes = size
        self._update_quick_bytes()

    def set_peer_header_table_bytes(self, size: int) -> None:
        """Set the size of the peer's header table.

        We never add to that table, but a smaller size must be acknowledged in the next block (RFC
        7541 4.2).
        """
        if size < _DEFAULT_HEADER_TABLE_BYTES and not self._header_table_off:
            self._header_table_off = True
            self._block_prefix = _NO_HEADER_TABLE
            self._update_quick_bytes()

    @property
    def sent_bytes(self) -> int:
        """Bytes of content sent on all streams."""
        return self._granted_bytes - self.send_window

    def grow_connection_window(self, increment: int) -> None:
        """Add to the connection's window.

        Raises:
            Http2ConnectionError: the window overflows.
        """
        self.send_window += increment
        self._granted_bytes += increment
        if self.send_window > frames.MAX_WINDOW_BYTES:
            raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "connection window overflow")
        if self.ready and not self.blocked:
            self.wake()

    def change_initial_window(self, value: int) -> None:
        """Change the initial window of streams, and the windows of those that are open.

        Raises:
            Http2ConnectionError: a window overflows.
        """
        change = value - self.peer_initial_window
        self.peer_initial_window = value
        for stream in self.streams.open.values():
            stream.send_window += change
            if stream.send_window > frames.MAX_WINDOW_BYTES:
                raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "stream window overflow")
            self.make_ready(stream)

    def make_ready(self, stream: S) -> None:
        """Let a stream take turns if it has something to send and a window for it."""
        if stream.queue is not None and stream.send_window > 0:
            self.ready[stream.id] = stream
            if not self.blocked and self.send_window > 0:
                self.wake()

    def pump(self) -> None:
        """Move queued content to `out`: one frame a turn, within windows and one pump's size."""
        budget = _PUMP_BYTES
        ready = self.ready
        drained: list[S] = []
        while ready and budget > 0 and self.send_window > 0:
            stream_id = next(iter(ready))
            stream = ready.pop(stream_id)
            if stream.send_window <= 0:
                # The stream's window shrank while it waited; a WINDOW_UPDATE makes it ready again.
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
        # Owners may send from these callbacks, so they run after the turns are over.
        for stream in drained:
            stream.notify_writable()

    # --- inside

    def _count_queued(self, change: int) -> None:
        if change and self._on_queued is not None:
            self._queued_bytes += change
            self._on_queued(self._queued_bytes)

    def _send_frame(self, stream: S) -> int:
        """Send one DATA frame, limited by the frame size, both windows and the queue."""
        queue = stream.queue
        assert queue is not None
        size = min(
            stream.queued_bytes, stream.send_window, self.send_window, self._peer_frame_bytes
        )
        self.out.append(_pack_frame_head(size >> 8, size & 0xFF, frames.DATA, 0, stream.id))
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
                self._close_local(stream)
        return size

    def _header_frames(self, stream_id: int, block: bytes, flags: int) -> bytes:
        """Return a header block as frames.

        These must be written before any other block is made into frames, because the first block
        carries the table size update.
        """
        if self._block_prefix:
            block = self._block_prefix + block
            self._block_prefix = b""
            self._update_quick_bytes()
        return frames.header_frames(stream_id, block, flags, self._peer_frame_bytes)

    def _end_frame(self, stream: S, trailers: bytes) -> bytes:
        if trailers:
            return self._header_frames(stream.id, trailers, frames.END_STREAM)
        return frames.frame(frames.DATA, frames.END_STREAM, stream.id)

    def _close_local(self, stream: S) -> None:
        stream.state = AFTER_END_SENT[stream.state]
        if stream.state is CLOSED:
            self.streams.open.pop(stream.id, None)
        else:
            self._on_half_closed(stream)

    def _update_quick_bytes(self) -> None:
        slow = self.blocked or self._block_prefix
        self.quick_bytes = 0 if slow else min(self._peer_frame_bytes, MAX_QUICK_BYTES)
