"""Control frames of an HTTP/2 connection: settings, pings, resets, windows and GOAWAY."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic

from nereid.rpc.http2 import frames
from nereid.rpc.http2.flood_budget import FloodBudget, WindowUpdateBudget
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.keepalive import Keepalive, KeepaliveAction
from nereid.rpc.http2.stream import S

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.http2.handler import ConnectionHandler
    from nereid.rpc.http2.limits import Limits
    from nereid.rpc.http2.sender import Sender

# Units of the flood budget. Cheap, because honest clients also reset many calls at once when
# deadlines pass.
_RESET_COST: Final = 0.25
# One unit of the flood budget pays for this many entries of a SETTINGS frame, or for this many
# streams whose windows the frame changes.
_ENTRIES_PER_UNIT: Final = 60
_STREAMS_PER_UNIT: Final = 64
_KEEPALIVE_PING: Final = b"keepaliv"
_DRAIN_PING: Final = b"draining"
_MIN_FRAME_LIMIT: Final = frames.DEFAULT_FRAME_BYTES


class ControlFrames(Generic[S]):
    """State of a connection that control frames change.

    settled: the peer's settings have arrived. draining: a drain was announced. refusing: new
    streams are refused.
    """

    def __init__(
        self,
        limits: Limits,
        sender: Sender[S],
        handler: ConnectionHandler[S],
        *,
        server: bool,
    ) -> None:
        self.server = server
        self.error: Http2ConnectionError | None = None
        self.settled = False
        self.draining = False
        self.refusing = False
        self.peer_max_streams: int | None = None
        self.keepalive = Keepalive(
            limits.keepalive_interval_s,
            limits.keepalive_timeout_s,
            when_idle=limits.keepalive_without_calls,
        )
        self.budget = FloodBudget(unlimited=limits.trusts_peer)
        self._window_updates = WindowUpdateBudget(self.budget)
        # Number of pings that the peer has sent.
        self.pings = 0
        self._streams = sender.streams
        self._sender = sender
        self._handler = handler
        self._timer_ran_at: float | None = None
        # Frame type -> handler of whole frames. Arguments: flags, stream id, payload.
        self.frame_handlers: dict[int, Callable[[int, int, bytes], None]] = {
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
        }

    def fail(self, error: Http2ConnectionError) -> None:
        """Give up the connection with a GOAWAY. The transport writes the output and closes."""
        if self.error is None:
            self.error = error
            self._write_goaway(error.code, error.message.encode("ascii", "replace"))

    def start_drain(self) -> None:
        """Announce a drain. The reply to the ping that follows shows that the peer knows of it."""
        if not self.draining:
            self.draining = True
            self._sender.write(frames.goaway(frames.MAX_STREAM_ID, Code.NO_ERROR))
            self._sender.write(frames.frame(frames.PING, 0, 0, _DRAIN_PING))

    def finish_drain(self) -> None:
        """Refuse new streams from now on: the second step of a drain."""
        if not self.refusing:
            self.draining = self.refusing = True
            self._write_goaway(Code.NO_ERROR)

    def _write_goaway(self, code: int, debug: bytes = b"") -> None:
        # GOAWAY names the peer's last stream. A server opens no streams.
        last_id = self._streams.last_id if self.server else 0
        self._sender.write(frames.goaway(last_id, code, debug))

    def on_timer(self, now: float) -> bool:
        """Run the timers once a second; return False if a keepalive ping got no reply."""
        gap = now - self._timer_ran_at if self._timer_ran_at is not None else 0.0
        self._timer_ran_at = now
        self.budget.refill(gap)
        action = self.keepalive.on_timer(now, gap, in_use=bool(self._streams.open))
        if action is KeepaliveAction.SEND_PING:
            self._sender.write(frames.frame(frames.PING, 0, 0, _KEEPALIVE_PING))
        return action is not KeepaliveAction.GIVE_UP

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self.budget.spend()
        if len(payload) != 5:
            raise Http2StreamError(Code.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if int.from_bytes(payload[:4]) & 0x7FFFFFFF == stream_id:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "a stream depends on itself")

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if stream_id == 0 or self._streams.is_idle(stream_id):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        self.budget.spend(_RESET_COST)
        stream = self._streams.open.get(stream_id)
        if stream is not None:
            self._sender.forget_stream(stream)
            self._handler.on_reset(stream, int.from_bytes(payload))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "SETTINGS ack with content")
            if not self.settled:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "SETTINGS ack before SETTINGS")
            self.budget.spend()
            return
        if len(payload) % 6:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        entries = frames.parse_settings(payload)
        self.budget.spend(1 + len(entries) // _ENTRIES_PER_UNIT)
        # The last value of a setting counts. For the header table size, so does the smallest (RFC
        # 7541 4.2).
        tables = [value for key, value in entries if key == frames.HEADER_TABLE_SIZE]
        if tables:
            self._sender.set_peer_header_table_bytes(min(tables))
        for key, value in dict(entries).items():
            self._apply_setting(key, value)
        self._sender.write(frames.SETTINGS_ACK)
        if not self.settled:
            self.settled = True
            self._handler.on_settings()

    def _apply_setting(self, key: int, value: int) -> None:
        sender = self._sender
        if key == frames.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW_BYTES:
                raise Http2ConnectionError(Code.FLOW_CONTROL_ERROR, "initial window too large")
            if value != sender.peer_initial_window:
                self.budget.spend(len(self._streams.open) / _STREAMS_PER_UNIT)
                sender.change_initial_window(value)
        elif key == frames.MAX_FRAME_SIZE:
            if not _MIN_FRAME_LIMIT <= value <= frames.MAX_FRAME_BYTES:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "frame size limit out of range")
            sender.set_peer_frame_bytes(value)
        elif key == frames.MAX_CONCURRENT_STREAMS:
            self.peer_max_streams = value
        elif key == frames.ENABLE_PUSH and value > (1 if self.server else 0):
            # Only a client may send 1. A server must not even offer push.
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "ENABLE_PUSH out of range")

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise Http2ConnectionError(Code.PROTOCOL_ERROR, "PUSH_PROMISE where push is off")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "PING of a wrong size")
        self.budget.spend()
        if not flags & frames.ACK:
            self.pings += 1
            self._sender.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN_PING and self.draining:
            self.finish_drain()

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
        self.budget.spend()
        last = int.from_bytes(payload[:4]) & 0x7FFFFFFF
        self._handler.on_goaway(last, int.from_bytes(payload[4:8]), payload[8:])

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        self._window_updates.spend(self._sender.sent_bytes)
        increment = int.from_bytes(payload) & 0x7FFFFFFF
        if stream_id == 0:
            if increment == 0:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
            self._sender.grow_connection_window(increment)
            return
        stream = self._streams.open.get(stream_id)
        if stream is None:
            if self._streams.is_idle(stream_id):
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return
        if increment == 0:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
        stream.send_window += increment
        if stream.send_window > frames.MAX_WINDOW_BYTES:
            raise Http2StreamError(Code.FLOW_CONTROL_ERROR, "stream window overflow")
        self._sender.make_ready(stream)
