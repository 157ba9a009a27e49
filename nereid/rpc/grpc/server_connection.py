"""The server's half of gRPC on one HTTP/2 connection. No I/O; time and tasks come in through
`Service`.

A unary request with its answer costs one Call, one look-up of its header block and one tuple of
bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from nereid.rpc.grpc.call import SLOTS, Call
from nereid.rpc.grpc.dispatch import Route, guarded, log, report
from nereid.rpc.grpc.metadata import encode_message, encode_metadata, literal
from nereid.rpc.grpc.request_head import OVERSIZED, HeadReader, Refusal, RequestHead
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.http2 import frames
from nereid.rpc.http2.connection import Connection
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.header_decoder import HeaderDecoder
from nereid.rpc.http2.sender import Stream
from nereid.rpc.net.stall_detection import ProgressWatch, StallWatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.rpc.grpc.call import AllocateBuffer
    from nereid.rpc.grpc.server_context import Service
    from nereid.rpc.http2.control_frames import Limits

# :status 200 is the static table's entry 8; content-type is its name 31.
HEAD_BLOCK = b"\x88" + b"\x0f\x10\x10application/grpc"
_OK_BLOCK = literal(b"grpc-status", b"0")

# HEADERS whole, then the heads of DATA and of its message.
_RESPONSE = Struct(f">BHBBI{len(HEAD_BLOCK)}sBHBBIBI")
# Walking a block of thousands of fields costs milliseconds.
_OVERSIZED_COST = 20.0
_REFUSAL_COST = 0.1
_pack_response = _RESPONSE.pack
_OK_TAIL = Struct(f">BHBBI{len(_OK_BLOCK)}s")
_pack_ok_tail = _OK_TAIL.pack
_HEAD_SIZE = len(HEAD_BLOCK)
_OK_SIZE = len(_OK_BLOCK)
_TAIL_FLAGS = frames.END_HEADERS | frames.END_STREAM


def _encode_trailers(trailers: Iterable[tuple[str, str | bytes]]) -> bytes:
    try:
        return encode_metadata(trailers)
    except ValueError:
        # The call must be answered whatever its handler says.
        log.exception("trailers that cannot be sent")
        return b""


class ServerCall(Stream, Call):
    """A call carried by our own engine."""

    __slots__ = (*SLOTS, "head_sent", "message", "route")

    connection: ServerConnection

    def __init__(self, connection: ServerConnection, stream_id: int, head: RequestHead) -> None:
        Stream.__init__(self, connection, stream_id)
        # As of any call, spelled out for speed.
        self.path = head.path
        self.peer = connection.peer
        self.metadata = head.metadata
        self.deadline = None
        self.done = False
        self.head_sent = False
        self.message: bytes | None = None
        self.on_cancel = None
        self.on_message = None
        self.on_half_close = None
        self.on_writable = None
        self.route: Route | None = head.route
        self.encoding = head.encoding
        self.expected_bytes = head.content_length

    @property
    def buffered_bytes(self) -> int:
        return self.queued_bytes

    def trust(self) -> None:
        self.connection.watched = False

    def reply(self, message: bytes) -> None:
        if self.done:
            return
        connection = self.connection
        size = len(message) + 5
        if (
            size > connection.quick_bytes
            or size > self.send_window
            or size > connection.send_window
            or self.head_sent
            or not self.remote_closed
        ):
            self.send(message)
            self.finish()
            return
        self.done = self.local_closed = True
        if self.deadline is not None:
            connection.service.deadlines.discard(self, self.deadline)
        connection.send_window -= size
        stream_id = self.id
        del connection.streams[stream_id]
        if not connection.out:
            connection.wake()
        connection.out += (
            _pack_response(
                *(0, _HEAD_SIZE, 1, 4, stream_id, HEAD_BLOCK),
                *(0, size, 0, 0, stream_id, 0, size - 5),
            ),
            message,
            _pack_ok_tail(0, _OK_SIZE, 1, _TAIL_FLAGS, stream_id, _OK_BLOCK),
        )
        self.on_cancel = None

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        if not self.done:
            self.accept()
            self.connection.send_parts(self, parts)
            self.finish()

    def accept(self) -> None:
        if not self.head_sent and not self.done:
            self.head_sent = True
            connection = self.connection
            connection.write(connection.header_frames(self.id, HEAD_BLOCK, 0))

    def send(self, message: bytes) -> None:
        if not self.done:
            self.accept()
            self.connection.send_message(self, message)

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        if self.done:
            return
        block = b"" if self.head_sent else HEAD_BLOCK
        if status == Status.OK and not trailers and not message:
            block += _OK_BLOCK
        else:
            block += literal(b"grpc-status", b"%d" % status)
            if message:
                block += literal(b"grpc-message", encode_message(message))
            block += _encode_trailers(trailers)
        self.connection.end_call(self, block)

    def refuse(self, refusal: Refusal) -> None:
        """Answer without a handler, by HTTP status where gRPC has no say."""
        if refusal.http_status == 200:
            self.finish(refusal.status, refusal.message, refusal.trailers)
            return
        self.connection.end_call(self, refusal.block())

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.connection.resumed(self)

    def writable(self) -> None:
        if self.on_writable is not None and not self.done:
            guarded(self, self.on_writable)

    def settle(self) -> None:
        """As of any call, spelled out for speed; the deadline goes as well."""
        self.done = True
        self.on_cancel = self.on_message = self.on_half_close = self.on_writable = None
        if self.deadline is not None:
            self.connection.service.deadlines.discard(self, self.deadline)

    def expire(self) -> None:
        """The deadline passed."""
        if not self.done:
            callback = self.on_cancel
            self.on_cancel = None
            self.fail(Status.DEADLINE_EXCEEDED, "the deadline passed")
            if callback is not None:
                guarded(self, callback)


class ServerConnection(Connection[ServerCall]):
    """One client's connection."""

    def __init__(self, limits: Limits, service: Service, peer: str) -> None:
        super().__init__(limits, frames.PREFACE)
        self.service = service
        self.peer = peer
        self._heads = HeadReader(
            HeaderDecoder(limits.max_header_list_bytes),
            service.routes,
            service.heads,
            service.compression,
        )
        self._max_streams = limits.max_concurrent_streams
        self._untaken: dict[int, StallWatch] = {}
        self._unsent = ProgressWatch(limits.read_timeout_s)
        self.out.append(self._opening())

    def _own_settings(self) -> dict[int, int]:
        return {frames.MAX_CONCURRENT_STREAMS: self.limits.max_concurrent_streams}

    def end_call(self, call: ServerCall, block: bytes) -> None:
        """Send the block that ends a call, and forget what the handler left."""
        call.settle()
        self.send_tail(call, block)

    def resumed(self, call: ServerCall) -> None:
        if not call.remote_closed:
            self._give_back(call)

    def _untaken_calls(self) -> list[ServerCall]:
        """The unary calls whose answers wait for the client."""
        waiting = [each for each in self.streams.values() if each.tail is not None]
        return [call for call in waiting if call.route is None or call.route.stream is None]

    def end_untaken(self, now: float) -> None:
        """Give up unary answers that wait for a window which the client does not open."""
        watches = {}
        for call in self._untaken_calls():
            watch = self._untaken.get(call.id) or StallWatch(self.limits.write_timeout_s)
            if watch.stalled(call.queued_bytes, now):
                self.reset(call, Code.CANCEL)
            else:
                watches[call.id] = watch
        self._untaken = watches

    def end_unsent(self, now: float) -> None:
        """Give up unary requests that do not go on coming, though the client may send."""
        come = {}
        for call in self.streams.values():
            if not (call.remote_closed or call.done or call.route is None or call.route.stream):
                # A frame counts as a whole when it begins.
                come[call.id] = call.unacked, self._data_stream is call and self._data_left
        for stream_id in self._unsent.standing({} if self._withheld else come, now):
            late = "the request did not arrive in time"
            self.streams[stream_id].fail(Status.DEADLINE_EXCEEDED, late)

    def tick(self, now: float) -> bool:
        if self._withheld:
            # Calls may have ended without a word of ours.
            self._give_back_connection()
        return super().tick(now)

    def _pump(self) -> None:
        super()._pump()
        if self._withheld:
            self._give_back_connection()

    def _give_back_connection(self) -> None:
        limit = self.limits.max_unsent_bytes
        unsent = 0 if limit is None else sum(each.queued_bytes for each in self._untaken_calls())
        self._withheld = limit is not None and unsent > limit
        if not self._withheld:
            super()._give_back_connection()

    def lost_calls(self) -> None:
        """The transport is gone."""
        for stream in self.lost():
            self._on_reset(stream, Code.CANCEL)

    # --- the core's hooks

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self.last_peer_stream_id or not stream_id & 1

    def _on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """A client that leaves finishes its calls and closes; nothing to do."""

    def _on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        if stream_id <= self.last_peer_stream_id:
            self._on_more_headers(stream_id, block, ended)
            return
        head = self._admit(stream_id, block)
        if head is None:
            self._remember_reset(stream_id)
            self.write(frames.rst_stream(stream_id, Code.REFUSED_STREAM))
            return
        kind = ServerCall if head.reply_encoding is None else self.service.compressing_call
        call = kind(self, stream_id, head)
        self.streams[stream_id] = call
        call.remote_closed = bool(ended)
        if head.refusal is not None:
            call.refuse(head.refusal)
            return
        if head.timeout_s is not None:
            self._set_deadline(call, head.timeout_s)
        if head.route.stream is not None:
            guarded(call, head.route.stream, call)
        if ended and not call.local_closed:
            self._ended(call)

    def _admit(self, stream_id: int, block: bytes) -> RequestHead | None:
        """The head of a new request, or None for one to be refused unseen."""
        if not stream_id & 1:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on an even stream")
        if self.refusing:
            # Above the last id that GOAWAY named: never processed.
            self._heads.skip(block)
            return None
        self.last_peer_stream_id = stream_id
        head = self._heads.read(block)
        if head is OVERSIZED:
            self._spend(_OVERSIZED_COST)
        if len(self.streams) >= self._max_streams:
            self._spend(_REFUSAL_COST)
            return None
        return head

    def _on_more_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        call = self.streams.get(stream_id)
        if call is None:
            if not stream_id & 1:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on an even stream")
            self._heads.skip(block)
            if stream_id not in self._reset_here:
                raise Http2ConnectionError(Code.STREAM_CLOSED, "HEADERS on a closed stream")
            return
        self._heads.trailers(block)
        if call.remote_closed:
            raise Http2StreamError(Code.STREAM_CLOSED, "HEADERS after the end of a stream")
        if not ended:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "trailers that do not end the stream")
        self._end(call)

    def _set_deadline(self, call: ServerCall, timeout_s: float) -> None:
        service = self.service
        call.deadline = service.now() + timeout_s
        if service.deadlines.add(call, call.deadline):
            service.arm()

    def _room_for(self, stream: ServerCall) -> AllocateBuffer | None:
        return None if stream.done or stream.route is None else stream.route.room

    def _on_message(self, stream: ServerCall, message: bytes) -> None:
        if stream.done:
            return
        if stream.on_message is not None:
            try:
                stream.on_message(message)
            except Exception as error:
                report(stream, error)
        elif stream.message is None:
            stream.message = message
        elif stream.route is None or stream.route.stream is None:
            stream.fail(Status.UNIMPLEMENTED, "more than one request message")

    def _on_end(self, stream: ServerCall) -> None:
        if stream.done:
            return
        route = stream.route
        assert route is not None
        try:
            if route.stream is not None:
                if stream.on_half_close is not None:
                    stream.on_half_close()
                return
            message = stream.message
            if message is None:
                stream.fail(Status.UNIMPLEMENTED, "no request message")
                return
            stream.message = None
            if route.unary is not None:
                route.unary(stream, message)
            elif route.coroutine is not None:
                self.service.spawn(stream, route.coroutine, message)
        except Exception as error:
            report(stream, error)

    def _on_reset(self, stream: ServerCall, code: int) -> None:  # noqa: ARG002 (the why is the same)
        stream.cancel()

    def _on_bad_message(self, stream: ServerCall, error: RpcError) -> None:
        stream.fail(error.status, error.message)

    def _tail_frame(self, stream: ServerCall, tail: bytes) -> bytes:
        return self.header_frames(stream.id, tail, frames.END_STREAM)

    def _local_closed(self, stream: ServerCall) -> None:
        if stream.remote_closed:
            self.streams.pop(stream.id, None)
        else:
            # Answered before the request was complete: its rest is not wanted.
            self.reset(stream, Code.NO_ERROR)
