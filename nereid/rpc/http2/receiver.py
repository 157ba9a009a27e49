"""Receiving side of an HTTP/2 connection: it cuts bytes into frames, and manages our windows.

The content of DATA frames is passed on as it arrives, other frames when complete. An error on a
single stream resets it; other errors raise Http2ConnectionError.
"""

from __future__ import annotations

import sys
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic

from nereid.rpc.http2 import frames
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.stream import AFTER_END_RECEIVED, LOCAL_CLOSED, REMOTE_CLOSED, S

if TYPE_CHECKING:
    from nereid.rpc.http2.control_frames import ControlFrames
    from nereid.rpc.http2.handler import ConnectionHandler, ContentReader
    from nereid.rpc.http2.limits import Limits
    from nereid.rpc.http2.sender import Sender


# Limit for frames other than DATA and header blocks.
_MAX_CONTROL_BYTES: Final = 16_384
_MAX_CONTINUATIONS: Final = 64
# A DATA frame below this size is charged if it arrives after the end of its stream.
_SMALL_BYTES: Final = 256
_SMALL_COST: Final = 0.2


class Expects(Enum):
    """Kind of frame that the receiver accepts next.

    PREFACE -> SETTINGS -> ANY_FRAME <-> CONTINUATION

    A server begins with PREFACE, a client with SETTINGS. HEADERS without END_HEADERS leads to
    CONTINUATION, and END_HEADERS leads back.
    """

    PREFACE = auto()
    SETTINGS = auto()
    ANY_FRAME = auto()
    CONTINUATION = auto()


# An attribute of an Enum class costs as much as a small call.
_ANY_FRAME: Final = Expects.ANY_FRAME
_PREFACE: Final = Expects.PREFACE


class Receiver(Generic[S]):
    """Parser and dispatcher of frames. `window_withheld`: the handler keeps the window closed."""

    def __init__(
        self,
        limits: Limits,
        sender: Sender[S],
        control: ControlFrames[S],
        handler: ConnectionHandler[S],
        content: ContentReader[S],
    ) -> None:
        self.window_withheld = False
        # Nonzero if the current DATA frame is complete and ends its stream.
        self.frame_ends = 0
        # Received content for which no WINDOW_UPDATE has been sent.
        self.unacknowledged_bytes = 0
        self._given_back_bytes = 0
        self._streams = sender.streams
        self._open_streams = sender.streams.open
        self._sender = sender
        self._control = control
        self._budget = control.budget
        self._handler = handler
        self._content = content
        self._expects = Expects.PREFACE if control.server else Expects.SETTINGS
        self._rest = b""
        # DATA frame that is still arriving. The stream is `None` if the content is skipped.
        self._data_left = 0
        self._data_stream: S | None = None
        self._data_ends = 0
        self._window = limits.connection_window_bytes
        self._half_window = limits.connection_window_bytes // 2
        self._stream_window = limits.stream_window_bytes
        self._half_stream_window = limits.stream_window_bytes // 2
        self._max_frame_bytes = limits.max_frame_bytes
        # Incomplete header block.
        self._block_stream_id = 0
        self._block_ends = 0
        self._block_pieces: list[bytes] = []
        self._block_bytes = 0
        self._largest_block_bytes = (
            max(limits.max_header_list_bytes, frames.DEFAULT_FRAME_BYTES) * 2
        )
        # Has one number for each frame that a turn may read. A client serves no other connections,
        # so it has no limit.
        self._turn = range(limits.max_frames_per_turn if control.server else sys.maxsize)
        # end_turn() exhausts this iterator.
        self._turn_left = iter(self._turn)
        self._frame_handlers = {
            **control.frame_handlers,
            frames.DATA: self._on_padded_data,
            frames.HEADERS: self._on_headers,
            frames.CONTINUATION: self._on_continuation,
        }

    def feed(self, data: bytes) -> bool:  # noqa: C901 (hot path: no further calls)
        """Process bytes from the socket; return True if frames are left for another turn.

        After True, call this again with the next bytes or with none.
        """
        if self._rest or self._expects is _PREFACE:
            data = self._join_rest(data)
        pos, end = 0, len(data)
        if self._data_left:
            pos = self._continue_data(data, end)
        # An iterator over a range is faster than a counter.
        self._turn_left = turn_left = iter(self._turn)
        for _ in turn_left:
            if end - pos < 9:
                break
            start = pos + 9
            # When compiled, this is faster than struct.unpack_from().
            size = data[pos] << 16 | data[pos + 1] << 8 | data[pos + 2]
            kind, flags = data[pos + 3], data[pos + 4]
            stream_id = (
                (data[pos + 5] & 0x7F) << 24
                | data[pos + 6] << 16
                | data[pos + 7] << 8
                | data[pos + 8]
            )
            stop = start + size
            if size > self._max_frame_bytes:
                raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "frame too large")
            # Fast paths for nearly all frames: DATA without padding, and HEADERS with END_HEADERS
            # and neither padding nor priority.
            if kind == 0 and not flags & 8 and self._expects is _ANY_FRAME:
                pos = self._on_data(stream_id, flags & 1, data, start, stop)
                continue
            if stop > end:
                if kind > frames.CONTINUATION:
                    # A frame of an extension of HTTP/2: skip its content as it arrives.
                    self._dispatch(kind, flags, stream_id, b"")
                    self._data_left = stop - end
                    pos = end
                    break
                self._check_size(kind, size)
                break
            if kind == 1 and flags & 0x2C == 4 and self._expects is _ANY_FRAME:
                self._on_block(stream_id, data[start:stop], flags & 1)
            else:
                self._check_size(kind, size)
                self._dispatch(kind, flags, stream_id, data[start:stop])
            pos = stop
        else:
            self._rest = data[pos:]
            return end - pos >= 9
        if pos < end:
            self._rest = data[pos:]
        return False

    def end_turn(self) -> None:
        """Leave further frames for another turn, because this turn was expensive."""
        deque(self._turn_left, maxlen=0)

    @property
    def received_bytes(self) -> int:
        """Bytes of content received on all streams."""
        return self._given_back_bytes + self.unacknowledged_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Received bytes of an incomplete frame and of an incomplete header block."""
        block_bytes = self._block_bytes if self._expects is Expects.CONTINUATION else 0
        return len(self._rest) + block_bytes

    def arriving_bytes(self, stream: S) -> int:
        """Return how many bytes of the stream's current DATA frame are missing."""
        return self._data_left if self._data_stream is stream else 0

    def _join_rest(self, data: bytes) -> bytes:
        data = self._rest + data
        self._rest = b""
        if self._expects is not Expects.PREFACE:
            return data
        preface = frames.PREFACE
        if not data.startswith(preface[: len(data)]):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "not HTTP/2")
        if len(data) < len(preface):
            self._rest = data
            return b""
        self._expects = Expects.SETTINGS
        return data[len(preface) :]

    def _check_size(self, kind: int, size: int) -> None:
        if kind in {frames.HEADERS, frames.CONTINUATION}:
            if size > self._largest_block_bytes:
                raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "header block too large")
        elif frames.DATA < kind <= frames.CONTINUATION and size > _MAX_CONTROL_BYTES:
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "control frame too large")

    def _dispatch(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        expects = self._expects
        if expects is Expects.CONTINUATION and (
            kind != frames.CONTINUATION or stream_id != self._block_stream_id
        ):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "a frame inside a header block")
        if expects is Expects.SETTINGS and kind != frames.SETTINGS:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        handle = self._frame_handlers.get(kind)
        if handle is None:
            self._budget.spend()
            return
        try:
            handle(flags, stream_id, payload)
        except Http2StreamError as error:
            self._on_stream_error(stream_id, error)
        if expects is Expects.SETTINGS and self._control.settled:
            self._expects = Expects.ANY_FRAME

    def _on_stream_error(self, stream_id: int, error: Http2StreamError) -> None:
        self._budget.spend()
        stream = self._open_streams.get(stream_id)
        if stream is not None:
            self._sender.reset_stream(stream, error.code)
            self._handler.on_reset(stream, error.code)
        elif self._streams.is_idle(stream_id):
            # RST_STREAM must not be sent for an idle stream.
            raise Http2ConnectionError(error.code, error.message)
        else:
            self._sender.refuse_stream(stream_id, error.code)

    def _on_data(self, stream_id: int, ended: int, data: bytes, start: int, stop: int) -> int:
        """Handle a DATA frame without padding, even incomplete; return where the next starts."""
        stream = self._admit_data(stream_id, stop - start)
        self.frame_ends = ended
        if start == stop and not ended:
            self._budget.spend()
        end = len(data)
        if stop > end:
            self._data_left = stop - end
            self._data_stream = stream
            self._data_ends = ended
            if stream is not None:
                self._content.read(stream, data, start, end)
            return end
        if stream is not None:
            self._content.read(stream, data, start, stop)
            if ended:
                self.end_remote(stream)
        return stop

    def _continue_data(self, data: bytes, end: int) -> int:
        stop = min(self._data_left, end)
        self._data_left -= stop
        stream = self._data_stream
        if stream is not None and not stream.state & REMOTE_CLOSED:
            self._content.read(stream, data, 0, stop)
            if not self._data_left and self._data_ends:
                self.end_remote(stream)
        if not self._data_left:
            self._data_stream = None
        return stop

    def _on_padded_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a padded DATA frame. Padding is no content, but counts against the windows."""
        if not payload or payload[0] >= len(payload):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "padding longer than its frame")
        padding = 1 + payload[0]
        if padding == len(payload) and not flags & frames.END_STREAM:
            self._budget.spend()
        stream = self._admit_data(stream_id, len(payload))
        if stream is not None:
            if stream.remaining_content_bytes is not None:
                stream.remaining_content_bytes += padding
            self._content.read(stream, payload, 1, len(payload) - payload[0])
            if flags & frames.END_STREAM:
                self.end_remote(stream)

    def _admit_data(self, stream_id: int, size: int) -> S | None:
        """Count a DATA frame against both windows, and reopen a window that is half used."""
        self.unacknowledged_bytes += size
        if self.unacknowledged_bytes >= self._half_window:
            if self.unacknowledged_bytes > self._window:
                raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "connection window exceeded")
            if not self.window_withheld:
                self.reopen_connection_window()
        stream = self._open_streams.get(stream_id)
        if stream is None or stream.state & REMOTE_CLOSED:
            self._on_data_after_end(stream_id, size)
            return None
        if stream.remaining_content_bytes is not None:
            stream.remaining_content_bytes -= size
        stream.unacknowledged_bytes += size
        if stream.unacknowledged_bytes >= self._half_stream_window:
            if stream.unacknowledged_bytes > self._stream_window:
                self._on_stream_error(
                    stream_id, Http2StreamError(Code.FLOW_CONTROL_ERROR, "stream window exceeded")
                )
                return None
            self.reopen_stream_window(stream)
        return stream

    def _on_data_after_end(self, stream_id: int, size: int) -> None:
        if size < _SMALL_BYTES:
            self._budget.spend(_SMALL_COST)
        if stream_id == 0 or self._streams.is_idle(stream_id):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "DATA on an idle stream")
        if not self._streams.was_reset_here(stream_id):
            self._on_stream_error(
                stream_id, Http2StreamError(Code.STREAM_CLOSED, "DATA on a closed stream")
            )

    def reopen_connection_window(self) -> None:
        """Reopen the connection's window, if the handler allows the peer to send more."""
        self.window_withheld = not self._handler.may_reopen_window()
        if not self.window_withheld:
            self._sender.write(frames.window_update(0, self.unacknowledged_bytes))
            self._given_back_bytes += self.unacknowledged_bytes
            self.unacknowledged_bytes = 0

    def reopen_stream_window(self, stream: S) -> None:
        """Reopen a stream's window if it is half used and the stream is not paused."""
        if not stream.paused and stream.unacknowledged_bytes >= self._half_stream_window:
            self._sender.write(frames.window_update(stream.id, stream.unacknowledged_bytes))
            stream.unacknowledged_bytes = 0

    def end_remote(self, stream: S) -> None:
        """Handle the END_STREAM flag of a DATA or HEADERS frame."""
        state = stream.state
        if not state & REMOTE_CLOSED:
            stream.state = AFTER_END_RECEIVED[state]
            self.finish_remote(stream)

    def finish_remote(self, stream: S) -> None:
        """Check the content of a stream that the peer has ended, and report the end."""
        if stream.remaining_content_bytes:
            self._on_stream_error(
                stream.id, Http2StreamError(Code.PROTOCOL_ERROR, "content-length does not match")
            )
        else:
            self._handler.on_end(stream)
        if stream.state & LOCAL_CLOSED:
            self._open_streams.pop(stream.id, None)

    def _on_block(self, stream_id: int, block: bytes, ended: int) -> None:
        try:
            self._handler.on_headers(stream_id, block, ended)
        except Http2StreamError as error:
            self._on_stream_error(stream_id, error)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        start, stop = 0, len(payload)
        if flags & frames.PADDED:
            if not payload or payload[0] >= stop:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "padding longer than its frame")
            start, stop = 1, stop - payload[0]
        if flags & frames.PRIORITY_FLAG:
            if stop - start < 5:
                raise Http2ConnectionError(
                    Code.FRAME_SIZE_ERROR, "HEADERS too short for a priority"
                )
            if int.from_bytes(payload[start : start + 4]) & 0x7FFFFFFF == stream_id:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "a stream depends on itself")
            start += 5
        if stream_id == 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on stream 0")
        ended = flags & frames.END_STREAM
        if flags & frames.END_HEADERS:
            self._on_block(stream_id, payload[start:stop], ended)
            return
        self._expects = Expects.CONTINUATION
        self._block_stream_id = stream_id
        self._block_ends = ended
        self._block_pieces = [payload[start:stop]]
        self._block_bytes = stop - start

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._expects is not Expects.CONTINUATION:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._budget.spend()
        self._block_bytes += len(payload)
        self._block_pieces.append(payload)
        if (
            self._block_bytes > self._largest_block_bytes
            or len(self._block_pieces) > _MAX_CONTINUATIONS
        ):
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "header block too large")
        if flags & frames.END_HEADERS:
            block = b"".join(self._block_pieces)
            self._block_pieces = []
            self._expects = Expects.ANY_FRAME
            self._on_block(stream_id, block, self._block_ends)
