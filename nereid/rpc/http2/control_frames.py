"""The control frames of an HTTP/2 connection, its settings, keepalive, and the budget that floods
are measured by.

Pure: no I/O, no clock. `tick` is called about once a second: it refills the budget and drives
keepalive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.rpc.http2 import frames
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.sender import Outbound, S

if TYPE_CHECKING:
    from collections.abc import Callable

# A peer may do so many cheap annoying things at once (pings, settings, resets, empty frames), and
# so many per second from then on. Real clients stay far below.
_BURST = 1000.0
_REFILL_PER_S = 500.0
# Clients whose deadlines pass reset many calls at once, and are no attackers.
_RESET_COST = 0.25
# Answers (to pings, settings, hopeless calls) that may wait for a peer that does not read.
_LARGEST_UNREAD_BYTES = 1 << 20
_REMEMBERED_RESETS = 512
# Ticks come at least twice in a keepalive timeout; a longer gap is no tick's doing.
_ASLEEP = 0.75
_KEEPALIVE = b"keepaliv"
_DRAIN = b"draining"
_DEFAULT_TABLE_BYTES = 4096
# A table size update to zero.
_NO_TABLE = b"\x20"
_SMALLEST_FRAME_LIMIT = frames.DEFAULT_FRAME_BYTES


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one side allows the other."""

    max_message_bytes: int = (1 << 31) - 1
    max_concurrent_streams: int = 1024
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 16 << 20
    max_frame_bytes: int = 1 << 18
    max_header_list_bytes: int = 16_384
    keepalive_interval_s: float | None = None
    keepalive_timeout_s: float = 20.0
    # A server's: how long a client may take nothing of an answer before its connection or, for
    # want of a window, its unary call is ended. What waits in streams is bounded by their owners.
    write_timeout_s: float | None = None
    # A server's: how long a unary request may bring nothing before it is whole; None: for ever.
    read_timeout_s: float | None = None
    # A server's: while more than this of unary answers waits for a client, it may send no more.
    # By withholding the connection's window: its WINDOW_UPDATEs must go on being read.
    max_unsent_bytes: int | None = None
    # Whether peers without any call under way are pinged as well.
    keepalive_without_calls: bool = True
    # A client trusts the server it chose; a server trusts nobody.
    trusting: bool = False


class Control(Outbound[S]):
    """State that control frames change."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.dead: Http2ConnectionError | None = None
        self.peer_max_streams = frames.LARGEST_STREAM_ID
        self.last_peer_stream_id = 0
        self.draining = False
        self.refusing = False
        self._settled = False
        # A server must not ask for push at all.
        self._most_push = 0 if limits.trusting else 1
        self._table_off = False
        self._calm = _BURST
        self._ticked: float | None = None
        self._unread_bytes = 0
        self._reset_here: dict[int, None] = {}
        self._heard = False
        self._quiet_since = 0.0
        self._ping_sent: float | None = None
        # Whether it is asked for signs of life.
        self.watched = True
        self._control: dict[int, Callable[[int, int, bytes], None]] = {
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway_frame,
            frames.WINDOW_UPDATE: self._on_window_update,
        }

    # --- hooks

    def _on_reset(self, stream: S, code: int) -> None:
        """The stream is gone: reset by either side."""
        raise NotImplementedError

    def _on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        raise NotImplementedError

    def _is_idle(self, stream_id: int) -> bool:
        raise NotImplementedError

    def _on_settled(self) -> None:
        """Settings of the peer arrived."""

    @property
    def settled(self) -> bool:
        """The peer has spoken HTTP/2 to us."""
        return self._settled

    # --- ends

    def fail(self, error_status: Http2ConnectionError) -> None:
        """Say why and give up: the shell writes what is left and closes."""
        if self.dead is None:
            self.dead = error_status
            debug = error_status.message.encode("ascii", "replace")
            self.write(frames.goaway(self.last_peer_stream_id, error_status.code, debug))

    def reset(self, stream: S, code: int) -> None:
        """End one stream at once, from here."""
        self._forget(stream)
        self._remember_reset(stream.id)
        self.write(frames.rst_stream(stream.id, code))

    def _remember_reset(self, stream_id: int) -> None:
        """The peer may not know yet: what still comes for the stream is not its fault."""
        if len(self._reset_here) >= _REMEMBERED_RESETS:
            del self._reset_here[next(iter(self._reset_here))]
        self._reset_here[stream_id] = None

    def _forget(self, stream: S) -> None:
        self.streams.pop(stream.id, None)
        self.drop_queue(stream)
        stream.local_closed = stream.remote_closed = True
        # A frame that is still coming knows of the stream, and would keep what came before.
        stream.assembly = None

    def start_drain(self) -> None:
        """First step of leaving: announce it, and by a ping learn when the peer has heard."""
        if not self.draining:
            self.draining = True
            self.write(frames.goaway(frames.LARGEST_STREAM_ID, Code.NO_ERROR))
            self.write(frames.frame(frames.PING, 0, 0, _DRAIN))

    def finish_drain(self) -> None:
        """Second step: from here on new streams are refused."""
        if not self.refusing:
            self.draining = self.refusing = True
            self.write(frames.goaway(self.last_peer_stream_id, Code.NO_ERROR))

    # --- floods and keepalive

    def _spend(self, cost: float = 1.0) -> None:
        """One cheap annoyance. Too many of them end the connection."""
        if self.limits.trusting:
            return
        self._calm -= cost
        if self._calm < 0:
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "too many control frames or resets")

    def write(self, data: bytes) -> None:
        super().write(data)
        if self._blocked and self.dead is None:
            self._unread_bytes += len(data)
            if self._unread_bytes > _LARGEST_UNREAD_BYTES:
                self.fail(Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "answers are not read"))

    def set_blocked(self, blocked: bool) -> None:
        self._unread_bytes = 0
        super().set_blocked(blocked)

    def tick(self, now: float) -> bool:
        """Refill the budget; False when the peer has not answered a keepalive ping in time."""
        gap = now - self._ticked if self._ticked is not None else 0.0
        self._ticked = now
        self._calm = min(_BURST, self._calm + _REFILL_PER_S * gap)
        interval = self.limits.keepalive_interval_s
        if interval is None or not self.watched:
            return True
        if self._heard or self._quiet_since == 0.0:
            self._heard = False
            self._quiet_since = now
            self._ping_sent = None
        elif self._ping_sent is not None:
            if gap > self.limits.keepalive_timeout_s * _ASLEEP:
                # It was us who stood still: the answer may wait in our socket.
                self._ping_sent = now
            return now - self._ping_sent < self.limits.keepalive_timeout_s
        elif now - self._quiet_since >= interval and (
            self.streams or self.limits.keepalive_without_calls
        ):
            self._ping_sent = now
            self.write(frames.frame(frames.PING, 0, 0, _KEEPALIVE))
        return True

    # --- frames

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._spend()
        if len(payload) != 5:
            raise Http2StreamError(Code.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if int.from_bytes(payload[:4]) & 0x7FFFFFFF == stream_id:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "a stream depends on itself")

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if stream_id == 0 or self._is_idle(stream_id):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        self._spend(_RESET_COST)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            self._on_reset(stream, int.from_bytes(payload))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "SETTINGS ack with content")
            if not self._settled:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "SETTINGS ack before SETTINGS")
            self._spend()
            return
        if len(payload) % 6:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        self._spend(1 + len(payload) // 60)
        for key, value in frames.parse_settings(payload):
            self._set(key, value)
        self.write(frames.SETTINGS_ACK)
        if not self._settled:
            self._settled = True
            self._on_settled()

    def _set(self, key: int, value: int) -> None:
        if key == frames.INITIAL_WINDOW_SIZE:
            if value > frames.LARGEST_WINDOW_BYTES:
                raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "initial window too large")
            self._change_initial_window(value)
        elif key == frames.MAX_FRAME_SIZE:
            if not _SMALLEST_FRAME_LIMIT <= value <= frames.LARGEST_FRAME_BYTES:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "frame size limit out of range")
            self.peer_frame_bytes = value
            self._set_quick()
        elif key == frames.MAX_CONCURRENT_STREAMS:
            self.peer_max_streams = value
        elif (
            key == frames.HEADER_TABLE_SIZE and value < _DEFAULT_TABLE_BYTES and not self._table_off
        ):
            # We never add to the peer's table, but RFC 7541 4.2 wants to hear that it fits.
            self._table_off = True
            self._block_prefix = _NO_TABLE
            self._set_quick()
        elif key == frames.ENABLE_PUSH and value > self._most_push:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "ENABLE_PUSH out of range")

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise Http2ConnectionError(Code.PROTOCOL_ERROR, "PUSH_PROMISE where push is off")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "PING of a wrong size")
        self._spend()
        if not flags & frames.ACK:
            self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN and self.draining:
            self.finish_drain()

    def _on_goaway_frame(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
        self._spend()
        last = int.from_bytes(payload[:4]) & 0x7FFFFFFF
        self._on_goaway(last, int.from_bytes(payload[4:8]), payload[8:])

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = int.from_bytes(payload) & 0x7FFFFFFF
        if stream_id == 0:
            if increment == 0:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
            self._grow_connection_window(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return
        if increment == 0:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
        stream.send_window += increment
        if stream.send_window > frames.LARGEST_WINDOW_BYTES:
            raise Http2StreamError(Code.FLOW_CONTROL_ERROR, "stream window overflow")
        self._make_ready(stream)
