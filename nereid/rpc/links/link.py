"""Links: many items to a frame, on one long-lived stream.

What is sent within one turn of the event loop leaves as one frame, or several if it is large; while
the stream is blocked by flow control, everything gathers until it is writable again. There are no
timers. A link knows nothing of what its items mean.

States: down -> up -> down, ... until closed; a link that was accepted is up from the start and down
for good. What is sent while a link is down is dropped, and what was under way when it broke is
lost: the owner, which alone knows what is unanswered, sends that again when `on_up` says so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.net.backoff import Backoff, BackoffOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.rpc.grpc.call import Call
    from nereid.rpc.grpc.channel import Channel, StreamHandle

log = logging.getLogger("nereid.rpc")

Out = TypeVar("Out")
In = TypeVar("In")

_BACKOFF = BackoffOptions(first_s=0.02, largest_s=1.0)
# Larger items have a frame of their own: what gathers while the other end is away has no bound,
# but messages have one, and both ends hold a frame as a whole.
_FRAME_BYTES = 4 << 20


class Codec(Protocol[Out, In]):
    """Items to a frame's bytes, and back. size_bytes: about what an item adds to a frame."""

    def size_bytes(self, item: Out) -> int: ...
    def encode(self, items: list[Out]) -> bytes: ...
    def decode(self, frame: bytes) -> list[In]: ...


class _Writer(Protocol):
    @property
    def buffered_bytes(self) -> int: ...
    def send(self, message: bytes) -> None: ...


class Link(Generic[Out]):
    """One end of a link. Used from the event loop's thread only."""

    on_items: Callable[[list[Any]], None]
    on_up: Callable[[], None]
    on_down: Callable[[], None]

    def __init__(self) -> None:
        self.up = False
        self.on_items = _ignore
        self.on_up = _nothing
        self.on_down = _nothing
        self._loop = asyncio.get_running_loop()
        self._items: list[Out] = []
        self._scheduled = False
        self._drained: list[asyncio.Future[None]] = []

    @property
    def pending(self) -> int:
        """Items not yet handed to the stream."""
        return len(self._items)

    def send(self, item: Out) -> None:
        if self.up:
            self._items.append(item)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Hand over now what was sent, for an owner that knows that nothing more is coming."""
        if self._scheduled:
            self._flush()

    def close(self) -> None:
        """Send what is pending, then end the link; `on_down` is for the other end."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait until everything sent has left, or the link is down."""
        while self.up and self._busy():
            done: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(done)
            await done

    def _busy(self) -> bool:
        return bool(self._items)

    def _flush(self) -> None:
        raise NotImplementedError

    def _release(self) -> None:
        """Wake those who wait in drain; they look for themselves."""
        waiting, self._drained = self._drained, []
        for done in waiting:
            if not done.done():
                done.set_result(None)

    def _deliver(self, items: list[Any]) -> None:
        try:
            self.on_items(items)
        except Exception:
            log.exception("a link's owner failed on %d items", len(items))

    def _lower(self) -> None:
        """The link broke, or the other end closed it."""
        if self._end():
            self.on_down()

    def _end(self) -> bool:
        """No more comes or goes; says whether it was up."""
        was_up, self.up = self.up, False
        self._items.clear()
        self._scheduled = False
        self._release()
        return was_up


class _StreamLink(Link[Out]):
    """A link over a stream's either end."""

    def __init__(self, codec: Codec[Out, Any]) -> None:
        super().__init__()
        self._codec = codec
        self._writer: _Writer | None = None

    def _busy(self) -> bool:
        return bool(self._items) or (self._writer is not None and self._writer.buffered_bytes > 0)

    def _flush(self) -> None:
        writer = self._writer
        if writer is None or not self._items:
            self._scheduled = False
        elif writer.buffered_bytes:
            # Blocked: `_scheduled` stays set, and the stream becoming writable comes back here.
            return
        else:
            self._scheduled = False
            writer.send(self._codec.encode(self._cut()))
            if self._items:
                self._scheduled = True
                if not writer.buffered_bytes:
                    self._loop.call_soon(self._flush)
        if self._drained:
            self._release()

    def _cut(self) -> list[Out]:
        """The next items, from the oldest, that share a frame."""
        items = self._items
        if len(items) > 1:
            room = _FRAME_BYTES
            size_bytes = self._codec.size_bytes
            for count, item in enumerate(items):
                room -= size_bytes(item)
                if room < 0 and count:
                    self._items = items[count:]
                    return items[:count]
        self._items = []
        return items

    def _send_rest(self, writer: _Writer) -> None:
        while self._items:
            writer.send(self._codec.encode(self._cut()))

    def _on_frame(self, frame: bytes) -> None:
        try:
            items = self._codec.decode(frame)
        except Exception:
            log.exception("a link's peer sent a frame that cannot be read")
            self._break()
            return
        self._deliver(items)

    def _break(self) -> None:
        raise NotImplementedError

    def _end(self) -> bool:
        self._writer = None
        return super()._end()


class _DialledLink(_StreamLink[Out]):
    """The client's end, which opens the stream anew whenever it ends."""

    def __init__(
        self,
        channel: Channel,
        path: str,
        codec: Codec[Out, Any],
        metadata: tuple[tuple[str, str | bytes], ...],
    ) -> None:
        super().__init__(codec)
        self._channel = channel
        self._path = path
        self._metadata = metadata
        self._backoff = Backoff(_BACKOFF)
        self._stream: StreamHandle | None = None
        self._retry: asyncio.Handle | None = self._loop.call_soon(self._open)
        self._closed = False
        self._last_error = ""

    def close(self) -> None:
        """Send what is pending, then end the stream."""
        if self._closed:
            return
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._writer is not None:
            self._send_rest(self._writer)
        if self._stream is not None:
            self._stream.half_close()
        self._end()

    def _open(self) -> None:
        self._retry = None
        self._stream = self._channel.stream(
            self._path,
            metadata=self._metadata,
            on_message=self._on_frame,
            on_close=self._on_close,
        )
        self._stream.on_open = self._on_open
        self._stream.on_writable = self._flush

    def _on_open(self) -> None:
        if self._closed:
            return
        self._backoff.succeeded()
        self._last_error = ""
        self._writer = self._stream
        self.up = True
        self.on_up()

    def _on_close(self, error: RpcError | None) -> None:
        self._stream = None
        self._lower()
        if self._closed:
            return
        text = "it ended" if error is None else str(error)
        if text != self._last_error:
            self._last_error = text
            log.warning("link %s is down: %s", self._path, text)
        self._retry = self._loop.call_later(self._backoff.next_delay_s(), self._open)

    def _break(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.cancel()
            self._on_close(RpcError(Status.INTERNAL, "a frame that cannot be read"))


class _AcceptedLink(_StreamLink[Out]):
    """The server's end, inside a stream handler."""

    def __init__(self, call: Call, codec: Codec[Out, Any]) -> None:
        super().__init__(codec)
        self._call = call
        self._writer = call
        self.up = True
        call.on_message = self._on_frame
        call.on_half_close = self._peer_closed
        call.on_cancel = self._lower
        call.on_writable = self._flush
        call.accept()

    def close(self) -> None:
        """Send what is pending, then end the stream."""
        if self.up:
            self._send_rest(self._call)
            self._call.finish()
            self._end()

    def _peer_closed(self) -> None:
        self._call.finish()
        self._lower()

    def _break(self) -> None:
        self._call.fail(Status.INVALID_ARGUMENT, "a frame that cannot be read")
        self._lower()


class _MemoryLink(Link[Out]):
    """One of two ends joined in memory: a turn's items are handed over as they are."""

    peer: _MemoryLink[Any]

    def join(self, peer: _MemoryLink[Any]) -> None:
        self.peer = peer
        self.up = True
        self._loop.call_soon(self._announce)

    def close(self) -> None:
        if self.up:
            self._flush()
            self._end()
            self._loop.call_soon(self.peer.peer_closed)

    def peer_closed(self) -> None:
        self._lower()

    def take(self, items: list[Any]) -> None:
        if self.up:
            self._deliver(items)

    def _announce(self) -> None:
        if self.up:
            self.on_up()

    def _flush(self) -> None:
        self._scheduled = False
        if self._items:
            items, self._items = self._items, []
            self.peer.take(items)
        self._release()


def dial_link(  # noqa: PLR0913 (by keyword, and what a link is)
    channel: Channel,
    path: str,
    codec: Codec[Out, In],
    *,
    metadata: Iterable[tuple[str, str | bytes]] = (),
    on_items: Callable[[list[In]], None],
    on_up: Callable[[], None],
    on_down: Callable[[], None],
) -> Link[Out]:
    """A link to a server's stream method, which comes back after every break until it is closed."""
    link: _DialledLink[Out] = _DialledLink(channel, path, codec, tuple(metadata))
    link.on_items, link.on_up, link.on_down = on_items, on_up, on_down
    return link


def accept_link(
    call: Call,
    codec: Codec[Out, In],
    *,
    on_items: Callable[[list[In]], None],
    on_down: Callable[[], None],
) -> Link[Out]:
    """The server's end of a link; for use inside a stream handler."""
    link: _AcceptedLink[Out] = _AcceptedLink(call, codec)
    link.on_items, link.on_down = on_items, on_down
    return link


def memory_links() -> tuple[Link[Any], Link[Any]]:
    """Two ends of a link in one event loop, both up; set their callbacks in this same turn."""
    one: _MemoryLink[Any] = _MemoryLink()
    other: _MemoryLink[Any] = _MemoryLink()
    one.join(other)
    other.join(one)
    return one, other


def _ignore(_items: list[Any]) -> None:
    pass


def _nothing() -> None:
    pass
