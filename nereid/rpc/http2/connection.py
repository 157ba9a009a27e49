"""The receiving half of an HTTP/2 connection (RFC 9113), common to server and client. No I/O, no
clock.

`receive` takes bytes as they come and calls the role's hooks; what the connection wants to say
gathers in `out` (see sending.py). A DATA frame's content is handed on as it arrives; all other
frames wait until they are whole.

States of a stream here: present in `streams` (open, or half closed as its flags say), gone (closed:
its id is at most the last one seen), or never seen (idle).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid.rpc.grpc.compression import decompress
from nereid.rpc.grpc.message_reader import Assembly, check_head
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.http2 import frames
from nereid.rpc.http2.control_frames import Control, Limits
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.sender import S

if TYPE_CHECKING:
    from nereid.rpc.grpc.call import AllocateBuffer

_unpack_frame_head = frames.FRAME_HEAD.unpack_from
_unpack_message_head = frames.MESSAGE_HEAD.unpack_from

# Content of a frame that is neither DATA nor part of a header block.
_LARGEST_CONTROL_BYTES = 16_384
_LARGEST_CONTINUATIONS = 64


class Connection(Control[S]):
    """Parses frames and keeps the connection's state. Subclasses are the two roles."""

    def __init__(self, limits: Limits, preface: bytes) -> None:
        super().__init__(limits)
        self._preface = preface
        self._rest = b""
        self._data_left = 0
        self._data_stream: S | None = None
        self._data_ends = 0
        self._unacked = 0
        # Whether the connection's window is kept back; a role's decision.
        self._withheld = False
        self._window = limits.connection_window_bytes
        self._half_window = limits.connection_window_bytes // 2
        self._stream_window = limits.stream_window_bytes
        self._half_stream_window = limits.stream_window_bytes // 2
        self._max_frame_bytes = limits.max_frame_bytes
        self._max_message_bytes = limits.max_message_bytes
        self._header_stream = 0
        self._header_flags = 0
        self._header_pieces: list[bytes] = []
        self._header_bytes = 0
        self._largest_block_bytes = (
            max(limits.max_header_list_bytes, frames.DEFAULT_FRAME_BYTES) * 2
        )
        self._control[frames.DATA] = self._on_data
        self._control[frames.HEADERS] = self._on_headers_frame
        self._control[frames.CONTINUATION] = self._on_continuation

    # --- hooks for the two roles

    def _on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        raise NotImplementedError

    def _on_message(self, stream: S, message: bytes) -> None:
        raise NotImplementedError

    def _room_for(self, _stream: S) -> AllocateBuffer | None:
        """Where messages that come in pieces are put together; None: in bytes."""
        return None

    def _on_end(self, stream: S) -> None:
        """The peer finished its side, in good order."""
        raise NotImplementedError

    def _on_bad_message(self, stream: S, error: RpcError) -> None:
        raise NotImplementedError

    # --- input

    def receive(self, data: bytes) -> None:
        if self.dead is not None:
            return
        self._heard = True
        try:
            if self._preface:
                data = self._take_preface(data)
            if not self._preface:
                self._parse(data)
        except Http2ConnectionError as error_status:
            self.fail(error_status)

    def lost(self) -> list[S]:
        """The transport is gone. Returns the streams that went with it."""
        if self.dead is None:
            self.dead = Http2ConnectionError(Code.CONNECT_ERROR, "connection lost")
        streams = list(self.streams.values())
        for stream in streams:
            self._forget(stream)
        self.out = []
        return streams

    def _opening(self) -> bytes:
        """Our settings, and the connection's window grown to its full size."""
        limits = self.limits
        values = {
            frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            frames.MAX_FRAME_SIZE: limits.max_frame_bytes,
            frames.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        }
        values.update(self._own_settings())
        growth = limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES
        return frames.settings(values) + frames.window_update(0, growth)

    def _own_settings(self) -> dict[int, int]:
        raise NotImplementedError

    def _take_preface(self, data: bytes) -> bytes:
        data = self._rest + data
        self._rest = b""
        preface = self._preface
        if not data.startswith(preface[: len(data)]):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "not HTTP/2")
        if len(data) < len(preface):
            self._rest = data
            return b""
        self._preface = b""
        return data[len(preface) :]

    def _parse(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        pos, end = 0, len(data)
        if self._data_left:
            pos = self._continue_data(data, end)
        while end - pos >= 9:
            high, size, kind, flags, stream_id = _unpack_frame_head(data, pos)
            size |= high << 8
            start = pos + 9
            stop = start + size
            if size > self._max_frame_bytes:
                raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "frame too large")
            # The two frames that make up nearly all requests; everything else is looked at whole.
            if kind == 0 and not flags & 8 and self._settled and not self._header_stream:
                pos = self._data_frame(stream_id & 0x7FFFFFFF, flags & 1, data, start, stop)
                continue
            if stop > end:
                if kind > frames.CONTINUATION:
                    # An extension's: whatever it holds is passed over as it comes.
                    self._whole_frame(kind, flags, stream_id & 0x7FFFFFFF, b"")
                    self._data_left = stop - end
                    pos = end
                    break
                self._check_size(kind, size)
                break
            if kind == 1 and flags & 0x2C == 4 and self._settled and not self._header_stream:
                self._headers(stream_id & 0x7FFFFFFF, data[start:stop], flags & 1)
            else:
                self._check_size(kind, size)
                self._whole_frame(kind, flags, stream_id & 0x7FFFFFFF, data[start:stop])
            pos = stop
        if pos < end:
            self._rest = data[pos:]

    def _check_size(self, kind: int, size: int) -> None:
        """Refuse what would only be buffered to be refused."""
        if kind in {frames.HEADERS, frames.CONTINUATION}:
            if size > self._largest_block_bytes:
                raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "header block too large")
        elif frames.DATA < kind <= frames.CONTINUATION and size > _LARGEST_CONTROL_BYTES:
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "control frame too large")

    def _whole_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._header_stream and (
            kind != frames.CONTINUATION or stream_id != self._header_stream
        ):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "a frame inside a header block")
        if not self._settled and kind != frames.SETTINGS:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        handle = self._control.get(kind)
        if handle is None:
            self._spend()
            return
        try:
            handle(flags, stream_id, payload)
        except Http2StreamError as error_status:
            self._stream_error(stream_id, error_status)

    def _stream_error(self, stream_id: int, error_status: Http2StreamError) -> None:
        self._spend()
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.reset(stream, error_status.code)
            self._on_reset(stream, error_status.code)
        elif self._is_idle(stream_id):
            # Of such a stream nothing may be said.
            raise Http2ConnectionError(error_status.code, error_status.message)
        else:
            self._remember_reset(stream_id)
            self.write(frames.rst_stream(stream_id, error_status.code))

    # --- DATA

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A padded frame; its padding counts for windows but is nobody's content."""
        if not payload or payload[0] >= len(payload):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "padding longer than its frame")
        start, stop = 1, len(payload) - payload[0]
        if start == stop and not flags & frames.END_STREAM:
            self._spend()
        stream = self._admit_data(stream_id, len(payload))
        if stream is not None:
            self._take_data(stream, payload, start, stop)
            if flags & frames.END_STREAM:
                self._end(stream)

    def _data_frame(self, stream_id: int, ended: int, data: bytes, start: int, stop: int) -> int:
        """A DATA frame without padding, whole or not; returns where the next frame starts."""
        stream = self._admit_data(stream_id, stop - start)
        if start == stop and not ended:
            self._spend()
        end = len(data)
        if stop > end:
            self._data_left = stop - end
            self._data_stream = stream
            self._data_ends = ended
            if stream is not None:
                self._take_data(stream, data, start, end)
            return end
        if stream is not None:
            self._take_data(stream, data, start, stop)
            if ended:
                self._end(stream)
        return stop

    def _continue_data(self, data: bytes, end: int) -> int:
        stop = min(self._data_left, end)
        self._data_left -= stop
        stream = self._data_stream
        if stream is not None and not stream.remote_closed:
            self._take_data(stream, data, 0, stop)
            if not self._data_left and self._data_ends:
                self._end(stream)
        if not self._data_left:
            self._data_stream = None
        return stop

    def _admit_data(self, stream_id: int, size: int) -> S | None:
        """Count a DATA frame against both windows, and give them back when half used."""
        self._unacked += size
        if self._unacked >= self._half_window:
            if self._unacked > self._window:
                raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "connection window exceeded")
            if not self._withheld:
                self._give_back_connection()
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            self._data_on_closed(stream_id)
            return None
        stream.unacked += size
        if stream.unacked >= self._half_stream_window:
            if stream.unacked > self._stream_window:
                self._stream_error(
                    stream_id, Http2StreamError(Code.FLOW_CONTROL_ERROR, "stream window exceeded")
                )
                return None
            self._give_back(stream)
        return stream

    def _give_back_connection(self) -> None:
        self.write(frames.window_update(0, self._unacked))
        self._unacked = 0

    def _give_back(self, stream: S) -> None:
        if not stream.paused and stream.unacked >= self._half_stream_window:
            self.write(frames.window_update(stream.id, stream.unacked))
            stream.unacked = 0

    def _data_on_closed(self, stream_id: int) -> None:
        if stream_id == 0 or self._is_idle(stream_id):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "DATA on an idle stream")
        if stream_id not in self._reset_here:
            self._stream_error(
                stream_id, Http2StreamError(Code.STREAM_CLOSED, "DATA on a closed stream")
            )

    def _take_data(self, stream: S, data: bytes, start: int, stop: int) -> None:
        """Cut messages from a piece of a stream."""
        if stream.expected_bytes is not None:
            stream.expected_bytes -= stop - start
        try:
            while start < stop:
                if stream.assembly is None and stop - start >= 5:
                    compressed, size = _unpack_message_head(data, start)
                    last = start + 5 + size
                    if last <= stop:
                        message = data[start + 5 : last]
                        start = last
                        if compressed or size > self._max_message_bytes:
                            message = self._unpacked(stream, compressed, message)
                        self._on_message(stream, message)
                        if stream.remote_closed:
                            return
                        continue
                start = self._assemble(stream, data, start, stop)
        except RpcError as error:
            stream.assembly = None
            self._on_bad_message(stream, error)

    def _assemble(self, stream: S, data: bytes, start: int, stop: int) -> int:
        assembly = stream.assembly
        if assembly is None:
            assembly = stream.assembly = Assembly(self._max_message_bytes, self._room_for(stream))
        start = assembly.feed(data, start, stop)
        if assembly.complete:
            stream.assembly = None
            message: Any = assembly.message()
            if assembly.compressed:
                message = self._unpacked(stream, assembly.compressed, message)
            self._on_message(stream, message)
            if stream.remote_closed:
                return stop
        return start

    def _unpacked(self, stream: S, compressed: int, message: bytes) -> bytes:
        check_head(compressed, len(message), self._max_message_bytes)
        return decompress(stream.encoding, message, self._max_message_bytes)

    def _end(self, stream: S) -> None:
        """END_STREAM from the peer, on DATA or HEADERS."""
        if not stream.remote_closed:
            stream.remote_closed = True
            self._ended(stream)

    def _ended(self, stream: S) -> None:
        if stream.expected_bytes:
            self._stream_error(
                stream.id, Http2StreamError(Code.PROTOCOL_ERROR, "content-length does not match")
            )
        elif stream.assembly is not None:
            self._on_bad_message(stream, RpcError(Status.INTERNAL, "a cut-off message"))
        else:
            self._on_end(stream)
        if stream.local_closed:
            self.streams.pop(stream.id, None)

    # --- HEADERS

    def _headers(self, stream_id: int, block: bytes, ended: int) -> None:
        try:
            self._on_headers(stream_id, block, ended)
        except Http2StreamError as error_status:
            self._stream_error(stream_id, error_status)

    def _on_headers_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        start, stop = 0, len(payload)
        if flags & frames.PADDED:
            if not payload or payload[0] >= stop:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "padding longer than its frame")
            start, stop = 1, stop - payload[0]
        itself = False
        if flags & frames.PRIORITY_FLAG:
            if stop - start < 5:
                raise Http2ConnectionError(
                    Code.FRAME_SIZE_ERROR, "HEADERS too short for a priority"
                )
            itself = int.from_bytes(payload[start : start + 4]) & 0x7FFFFFFF == stream_id
            start += 5
        self._header_stream = stream_id
        self._header_flags = flags & frames.END_STREAM
        self._header_pieces = [payload[start:stop]]
        self._header_bytes = stop - start
        if itself:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "a stream depends on itself")
        if stream_id == 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & frames.END_HEADERS:
            self._finish_headers()

    def _on_continuation(self, flags: int, _stream_id: int, payload: bytes) -> None:
        if not self._header_stream:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._header_bytes += len(payload)
        self._header_pieces.append(payload)
        if (
            self._header_bytes > self._largest_block_bytes
            or len(self._header_pieces) > _LARGEST_CONTINUATIONS
        ):
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "header block too large")
        if flags & frames.END_HEADERS:
            self._finish_headers()

    def _finish_headers(self) -> None:
        stream_id = self._header_stream
        self._header_stream = 0
        block = b"".join(self._header_pieces)
        self._header_pieces = []
        self._headers(stream_id, block, self._header_flags)
