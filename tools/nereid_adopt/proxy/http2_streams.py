"""Connections over HTTP/2: clients' to the proxy, and the proxy's to a server.

Header blocks and content are passed on as they are; only their frames are made anew.
"""

# layout: compiled

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.rpc.http2 import frames
from nereid.rpc.http2.connection import Http2Connection
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.header_decoder import HeaderDecoder
from nereid.rpc.http2.limits import Limits
from nereid.rpc.http2.stream import LOCAL_CLOSED, REMOTE_CLOSED
from nereid_adopt.proxy.proxy_stream import Block, ProxyStream, StreamHolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.http2.writer import Http2Writer
    from nereid_adopt.proxy.proxy_stream import StreamOwner

_CACHED_BLOCKS: Final = 64
CLIENT_LIMITS: Final = Limits(max_header_list_bytes=1 << 16, stream_window_bytes=4 << 20)
SERVER_LIMITS: Final = replace(CLIENT_LIMITS, trusts_peer=True)


class StreamConnection(StreamHolder):
    """One HTTP/2 connection: the handler of its events and the reader of its content."""

    def __init__(self, limits: Limits, writer: Http2Writer, *, server: bool) -> None:
        self.writer = writer
        self.http2: Http2Connection[ProxyStream] = Http2Connection(
            limits, self, self, server=server, wake=writer.wake
        )
        self.leaving = False
        # Connections to which this one's content is passed on.
        self.peers: list[StreamConnection] = []
        self._decoder = HeaderDecoder(limits.max_header_list_bytes)
        self._blocks: BoundedCache[bytes, Block] = BoundedCache(_CACHED_BLOCKS)

    def receive(self, data: bytes) -> bool:
        """Process received bytes, and write what is to be passed on at once, in one piece each.

        Returns whether frames are left for another turn.
        """
        peers = self.peers
        self.writer.begin_turn()
        for peer in peers:
            peer.writer.begin_turn()
        unread = self.http2.receive_data(data)
        for peer in peers:
            peer.writer.end_turn()
        self.writer.end_turn()
        return unread

    def connection_lost(self) -> None:
        """End all streams."""
        self.leaving = True
        peers, self.peers = self.peers, []
        for peer in peers:
            if self in peer.peers:
                peer.peers.remove(self)
        for stream in self.http2.connection_lost():
            self._close(stream, Code.CONNECT_ERROR, processed=True)
        self.on_closed()

    def decode(self, block: bytes) -> Block:
        """Return a decoded header block."""
        found = self._blocks.get(block)
        if found is None:
            before = self._decoder.generation
            decoded = self._decoder.decode(block)
            if self._decoder.generation != before:
                # The dynamic table has changed, so equal bytes may mean something else.
                self._blocks.clear()
            if decoded.oversized:
                raise Http2StreamError(Code.ENHANCE_YOUR_CALM, "the metadata is too large")
            found = Block(decoded.fields)
            if self._decoder.generation == before:
                self._blocks.remember(block, found)
        return found

    def on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        """Handle a header block; see ConnectionHandler."""
        raise NotImplementedError

    def read(self, stream: ProxyStream, data: bytes, start: int, stop: int) -> None:
        """Pass on content."""
        if stream.owner is not None and start < stop:
            stream.owner.on_content(data[start:stop])

    def on_end(self, stream: ProxyStream) -> None:
        """Report the end of the peer's side without trailers."""
        if stream.owner is not None:
            stream.owner.on_end(None)

    def on_reset(self, stream: ProxyStream, code: int) -> None:
        """Report a reset."""
        self._close(stream, code, processed=code != Code.REFUSED_STREAM)
        self.on_stream_closed()

    def on_half_closed(self, stream: ProxyStream) -> None:
        """Do nothing: the peer's side goes on."""

    def on_settings(self) -> None:
        """Do nothing."""

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Do nothing: a client that leaves finishes its calls."""

    def may_reopen_window(self) -> bool:
        """Return True: streams have windows of their own."""
        return True

    def on_trailers(self, stream: ProxyStream, block: Block, ended: int) -> None:
        """Handle a header block after the first one."""
        if not ended:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "trailers that do not end the stream")
        if stream.state & REMOTE_CLOSED:
            raise Http2StreamError(Code.STREAM_CLOSED, "HEADERS after the end of a stream")
        # end_remote() reports an end without trailers.
        owner, stream.owner = stream.owner, None
        self.http2.receiver.end_remote(stream)
        stream.owner = owner
        if owner is not None:
            owner.on_end(block)

    def on_closed(self) -> None:
        """Do nothing."""

    def _close(self, stream: ProxyStream, code: int, *, processed: bool) -> None:
        owner, stream.owner = stream.owner, None
        if owner is not None:
            owner.on_reset(code, processed=processed)


class Http2ClientConnection(StreamConnection):
    """A client's connection. on_stream: returns the owner of a new stream."""

    def __init__(
        self,
        writer: Http2Writer,
        on_stream: Callable[[ProxyStream, Block], StreamOwner],
        on_closed: Callable[[], None],
    ) -> None:
        super().__init__(CLIENT_LIMITS, writer, server=True)
        self._on_stream = on_stream
        self._on_closed = on_closed

    def on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        """Open a stream, or handle trailers."""
        table = self.http2.streams
        if stream_id <= table.last_id:
            found = table.open.get(stream_id)
            decoded = self.decode(block)
            if found is not None:
                self.on_trailers(found, decoded, ended)
            elif not table.was_reset_here(stream_id):
                raise Http2ConnectionError(Code.STREAM_CLOSED, "HEADERS on a closed stream")
            return
        if not stream_id & 1:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on an even stream")
        decoded = self.decode(block)
        if self.http2.control.refusing or len(table.open) >= CLIENT_LIMITS.max_concurrent_streams:
            table.last_id = stream_id
            self.http2.sender.refuse_stream(stream_id, Code.REFUSED_STREAM)
            return
        table.last_id = stream_id
        stream = ProxyStream(stream_id, self)
        table.open[stream_id] = stream
        stream.owner = self._on_stream(stream, decoded)
        if ended:
            self.http2.receiver.end_remote(stream)

    def on_half_closed(self, stream: ProxyStream) -> None:
        """Reset a call that has ended early, because the rest of its request is not needed."""
        stream.owner = None
        self.http2.sender.reset_stream(stream, Code.NO_ERROR)

    def on_closed(self) -> None:
        """Report the end of the connection."""
        self._on_closed()


class Http2ServerConnection(StreamConnection):
    """A connection to a server."""

    def __init__(self, writer: Http2Writer) -> None:
        super().__init__(SERVER_LIMITS, writer, server=False)
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def usable(self) -> bool:
        """True if new streams may be opened."""
        return (
            not self.leaving
            and self.http2.control.error is None
            and self.http2.streams.last_id < frames.MAX_STREAM_ID - 2
        )

    @property
    def has_free_slot(self) -> bool:
        """True if a stream may be opened at once."""
        return self.usable and self._has_slot and not self._waiting

    def when_free(self, start: Callable[[], None]) -> None:
        """Call start() when the server's limit allows another stream."""
        if self._has_slot and not self._waiting:
            start()
        else:
            self._waiting.append(start)

    def request(self, block: bytes, content: list[bytes], owner: StreamOwner) -> ProxyStream:
        """Open a stream, and send a whole request on it."""
        stream = self.open(block, owner)
        for piece in content[:-1]:
            stream.send_content(piece)
        stream.send_last(content[-1] if content else b"")
        return stream

    def open(self, block: bytes, owner: StreamOwner) -> ProxyStream:
        """Open a stream."""
        table = self.http2.streams
        stream_id = table.last_id = (table.last_id + 1) | 1
        stream = ProxyStream(stream_id, self)
        stream.owner = owner
        table.open[stream_id] = stream
        self.http2.sender.write_headers(stream_id, block)
        return stream

    def on_headers(self, stream_id: int, block: bytes, ended: int) -> None:
        """Handle response headers or trailers."""
        table = self.http2.streams
        decoded = self.decode(block)
        stream = table.open.get(stream_id)
        if stream is None:
            if table.is_idle(stream_id):
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "HEADERS on an idle stream")
            return
        if stream.opened or ended:
            self.on_trailers(stream, decoded, ended)
        else:
            # Informational responses are followed by the real one.
            status = decoded.get(b":status") or b""
            stream.opened = not status.startswith(b"1")
            if stream.owner is not None:
                stream.owner.on_head(decoded)

    def on_trailers(self, stream: ProxyStream, block: Block, ended: int) -> None:
        """Handle trailers, and close a stream whose request is not needed any more."""
        super().on_trailers(stream, block, ended)
        self._close_remote(stream)

    def on_end(self, stream: ProxyStream) -> None:
        """Report an end without trailers."""
        super().on_end(stream)
        if stream.owner is not None:
            self._close_remote(stream)

    def on_settings(self) -> None:
        """Open streams that have waited."""
        self.on_stream_closed()

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:  # noqa: ARG002
        """Close the streams that the server will not process, and open no new ones."""
        self.leaving = True
        for stream in list(self.http2.streams.open.values()):
            if stream.id > last_stream_id:
                self.http2.sender.forget_stream(stream)
                self._close(stream, Code.REFUSED_STREAM, processed=False)
        self.on_stream_closed()

    def on_stream_closed(self) -> None:
        """Open a stream that has waited, and leave a connection that takes no more streams."""
        while self._waiting and (self._has_slot or not self.usable):
            self._waiting.popleft()()
        if self.leaving and not self.http2.streams.open:
            self.writer.close()

    def on_closed(self) -> None:
        """Let waiting streams find another connection."""
        while self._waiting:
            self._waiting.popleft()()

    @property
    def _has_slot(self) -> bool:
        limit: Any = self.http2.control.peer_max_streams
        return limit is None or len(self.http2.streams.open) < limit

    def _close_remote(self, stream: ProxyStream) -> None:
        if not stream.state & LOCAL_CLOSED:
            self.http2.sender.reset_stream(stream, Code.CANCEL)
        # See ProxyStream.end().
        stream.owner = None
        self.http2.streams.open.pop(stream.id, None)
        self.on_stream_closed()
