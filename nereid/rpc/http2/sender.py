"""The sending half of an HTTP/2 connection: windows, queues, and fair turns between streams.

Pure: output gathers in `out` for a shell to take; `wake` tells it that there is some. A message
goes straight to `out` when windows allow; otherwise it waits with its stream, so that `out` never
grows by more than a pump's worth ahead of the socket. A stream's waiting bytes are its owner's to
bound (`buffered_bytes`).
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nereid.rpc.http2 import frames
from nereid.rpc.http2.frames import Code, Http2ConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.rpc.grpc.message_reader import Assembly

LOW_WATER_BYTES = 65_536
# Moved to `out` in one go: enough to keep a socket busy, little enough to stay fair and bounded.
_PUMP_BYTES = 262_144
_LARGEST_QUICK_BYTES = 65_535

# A DATA frame's head and a message's head in one pack. Only for frames below 64 KiB.
_DATA_AND_MESSAGE = Struct(">BHBBIBI")
_pack_data_and_message = _DATA_AND_MESSAGE.pack
_pack_frame_head = frames.FRAME_HEAD.pack


class Stream:
    """One stream's record; calls on either side extend it."""

    __slots__ = (
        "above_low_water",
        "assembly",
        "connection",
        "encoding",
        "expected_bytes",
        "id",
        "local_closed",
        "paused",
        "queue",
        "queued_bytes",
        "remote_closed",
        "send_window",
        "tail",
        "unacked",
    )

    def __init__(self, connection: Outbound[Any], stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        self.send_window = connection.peer_initial_window
        self.unacked = 0
        self.queue: deque[memoryview] | None = None
        self.queued_bytes = 0
        self.tail: bytes | None = None
        self.above_low_water = False
        self.remote_closed = False
        self.local_closed = False
        self.paused = False
        self.assembly: Assembly | None = None
        self.encoding = "identity"
        self.expected_bytes: int | None = None

    def writable(self) -> None:
        """What waited fell below the low-water mark, or is all gone."""


def _nothing() -> None:
    pass


S = TypeVar("S", bound=Stream)


class Outbound(Generic[S]):
    """Everything about sending. `wake` is called when `out` stops being empty."""

    def __init__(self) -> None:
        self.out: list[bytes | memoryview] = []
        self.wake: Callable[[], None] = _nothing
        self.streams: dict[int, S] = {}
        self.send_window = frames.DEFAULT_WINDOW_BYTES
        self.peer_initial_window = frames.DEFAULT_WINDOW_BYTES
        self.peer_frame_bytes = frames.DEFAULT_FRAME_BYTES
        # The largest message that may go straight out; zero while the socket takes no more.
        self.quick_bytes = frames.DEFAULT_FRAME_BYTES
        # Owed to a peer that shrank its header table: "I use none of it", before the next block.
        self._block_prefix = b""
        self._blocked = False
        self._ready: dict[int, S] = {}

    # --- for the shell

    def take(self) -> list[bytes | memoryview]:
        """All there is to write now; call again until it is empty or the socket takes no more."""
        if self._ready and not self._blocked:
            self._pump()
        out, self.out = self.out, []
        return out

    def set_blocked(self, blocked: bool) -> None:
        """The socket takes no more, or takes more again."""
        self._blocked = blocked
        self._set_quick()
        if not blocked and (self._ready or self.out):
            self.wake()

    # --- for calls

    def write(self, data: bytes) -> None:
        """Frames that no window holds back."""
        if not self.out:
            self.wake()
        self.out.append(data)

    def send_message(self, stream: S, message: bytes, compressed: int = 0) -> None:
        size = len(message) + 5
        if stream.queue is None and size <= min(
            self.quick_bytes, stream.send_window, self.send_window
        ):
            stream.send_window -= size
            self.send_window -= size
            if not self.out:
                self.wake()
            self.out += (
                _pack_data_and_message(0, size, frames.DATA, 0, stream.id, compressed, size - 5),
                message,
            )
            return
        self._enqueue(stream, (message,), compressed)

    def send_parts(self, stream: S, parts: Sequence[bytes | memoryview]) -> None:
        """One message, given in parts that are not worth joining."""
        self._enqueue(stream, parts, 0)

    def header_frames(self, stream_id: int, block: bytes, flags: int) -> bytes:
        """A header block ready to write; to be written before any other."""
        if self._block_prefix:
            block = self._block_prefix + block
            self._block_prefix = b""
            self._set_quick()
        return frames.header_frames(stream_id, block, flags, self.peer_frame_bytes)

    def send_tail(self, stream: S, tail: bytes) -> None:
        """What ends our side, after all that waits; the role knows its frame."""
        if stream.queue is None:
            self.write(self._tail_frame(stream, tail))
            self._close_local(stream)
        else:
            stream.tail = tail

    def drop_queue(self, stream: S) -> None:
        stream.queue = None
        stream.queued_bytes = 0
        stream.tail = None
        self._ready.pop(stream.id, None)

    # --- inside

    def _tail_frame(self, stream: S, tail: bytes) -> bytes:
        raise NotImplementedError

    def _local_closed(self, stream: S) -> None:
        """Our side of the stream ended; roles decide what follows."""

    def _close_local(self, stream: S) -> None:
        stream.local_closed = True
        self._local_closed(stream)

    def _set_quick(self) -> None:
        slow = self._blocked or self._block_prefix
        self.quick_bytes = 0 if slow else min(self.peer_frame_bytes, _LARGEST_QUICK_BYTES)

    def _enqueue(self, stream: S, parts: Sequence[bytes | memoryview], compressed: int) -> None:
        queue = stream.queue
        if queue is None:
            queue = stream.queue = deque()
        size = sum(map(len, parts))
        head = frames.MESSAGE_HEAD.pack(compressed, size)
        if size < _LARGEST_QUICK_BYTES:
            queue.append(memoryview(b"".join((head, *parts))))
        else:
            queue.append(memoryview(head))
            queue.extend(memoryview(part) for part in parts if part)
        stream.queued_bytes += size + 5
        if stream.queued_bytes > LOW_WATER_BYTES:
            stream.above_low_water = True
        self._make_ready(stream)

    def _make_ready(self, stream: S) -> None:
        if stream.queue is not None and stream.send_window > 0:
            self._ready[stream.id] = stream
            if not self._blocked and self.send_window > 0:
                self.wake()

    def _pump(self) -> None:
        """Give ready streams turns of one frame each, within windows and one pump's worth."""
        budget = _PUMP_BYTES
        ready = self._ready
        drained: list[S] = []
        while ready and budget > 0 and self.send_window > 0:
            stream_id = next(iter(ready))
            stream = ready.pop(stream_id)
            if stream.send_window <= 0:
                # Its window shrank while it waited; WINDOW_UPDATE brings it back.
                continue
            sent = self._send_some(stream)
            budget -= sent
            if stream.queue is not None and stream.send_window > 0:
                ready[stream_id] = stream
            if stream.queue is None or (
                stream.above_low_water and stream.queued_bytes <= LOW_WATER_BYTES
            ):
                stream.above_low_water = False
                drained.append(stream)
        # Owners may send from here: not before the turns are over.
        for stream in drained:
            stream.writable()

    def _send_some(self, stream: S) -> int:
        """One DATA frame of at most a frame's, both windows' and the queue's size."""
        queue = stream.queue
        assert queue is not None
        size = min(stream.queued_bytes, stream.send_window, self.send_window, self.peer_frame_bytes)
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
            if stream.tail is not None:
                self.out.append(self._tail_frame(stream, stream.tail))
                stream.tail = None
                self._close_local(stream)
        return size

    # --- what the peer says about windows

    def _grow_connection_window(self, increment: int) -> None:
        self.send_window += increment
        if self.send_window > frames.LARGEST_WINDOW_BYTES:
            raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "connection window overflow")
        if self._ready and not self._blocked:
            self.wake()

    def _change_initial_window(self, value: int) -> None:
        change = value - self.peer_initial_window
        self.peer_initial_window = value
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > frames.LARGEST_WINDOW_BYTES:
                raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "stream window overflow")
            self._make_ready(stream)
