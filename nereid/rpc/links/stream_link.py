"""Links over gRPC streams. Each message is one frame. Items gather while the stream is blocked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.links.link import Link, Out
from nereid.rpc.net.backoff import Backoff, BackoffOptions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from nereid.rpc.grpc.call import Call
    from nereid.rpc.grpc.channel import Channel, StreamHandle

log = logging.getLogger("nereid.rpc")

In = TypeVar("In")

_BACKOFF: Final = BackoffOptions(first_s=0.02, largest_s=1.0)
# A larger item has its own frame. Without a limit, items for a slow reader would form one huge
# frame, which could exceed the maximum message size and fill the memory of both ends.
_FRAME_BYTES: Final = 4 << 20


class Codec(Protocol[Out, In]):
    """Codec that encodes items as the bytes of a frame, and decodes frames."""

    def size_bytes(self, item: Out) -> int:
        """Return the approximate number of bytes that an item adds to a frame."""
        ...

    def encode(self, items: list[Out]) -> bytes:
        """Return a frame with these items."""
        ...

    def decode(self, frame: bytes) -> list[In]:
        """Return the items of a frame. Any exception ends the stream."""
        ...


class _Writer(Protocol):
    @property
    def buffered_bytes(self) -> int: ...
    def send(self, message: bytes) -> None: ...


class _StreamLink(Link[Out]):
    def __init__(
        self,
        codec: Codec[Out, Any],
        on_items: Callable[[list[Any]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        super().__init__(on_items, on_up, on_down)
        self._codec = codec
        self._writer: _Writer | None = None

    def _has_unsent(self) -> bool:
        return bool(self._items) or (self._writer is not None and self._writer.buffered_bytes > 0)

    def _flush(self) -> None:
        writer = self._writer
        if writer is None or not self._items:
            self._scheduled = False
        elif writer.buffered_bytes:
            # The stream is blocked. `_scheduled` stays set until on_writable calls this again.
            return
        else:
            self._scheduled = False
            writer.send(self._codec.encode(self._pop_frame()))
            if self._items:
                self._scheduled = True
                if not writer.buffered_bytes:
                    self._loop.call_soon(self._flush)
        if self._drained:
            self._wake_drainers()

    def _pop_frame(self) -> list[Out]:
        items = self._items
        if len(items) > 1:
            left = _FRAME_BYTES
            size_bytes = self._codec.size_bytes
            for count, item in enumerate(items):
                left -= size_bytes(item)
                if left < 0 and count:
                    self._items = items[count:]
                    return items[:count]
        self._items = []
        return items

    def _send_all(self, writer: _Writer) -> None:
        while self._items:
            writer.send(self._codec.encode(self._pop_frame()))

    def _on_frame(self, frame: bytes) -> None:
        try:
            items = self._codec.decode(frame)
        except Exception:
            log.exception("malformed frame from the peer of a link; ending its stream")
            self._abort()
            return
        self._deliver(items)

    def _abort(self) -> None:
        raise NotImplementedError

    def _set_down(self) -> bool:
        self._writer = None
        return super()._set_down()


class _DialledLink(_StreamLink[Out]):
    def __init__(  # noqa: PLR0913, PLR0917 (as dial_link)
        self,
        channel: Channel,
        path: str,
        codec: Codec[Out, Any],
        metadata: tuple[tuple[str, str | bytes], ...],
        on_items: Callable[[list[Any]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        super().__init__(codec, on_items, on_up, on_down)
        self._channel = channel
        self._path = path
        self._metadata = metadata
        self._backoff = Backoff(_BACKOFF)
        self._stream: StreamHandle | None = None
        self._retry: asyncio.Handle | None = self._loop.call_soon(self._open)
        self._closed = False
        self._last_error = ""
        self._is_end_expected = False

    def expect_end(self) -> None:
        self._is_end_expected = True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._writer is not None:
            self._send_all(self._writer)
        if self._stream is not None:
            self._stream.half_close()
        self._set_down()

    def _open(self) -> None:
        self._retry = None
        self._stream = self._channel.stream(
            self._path,
            metadata=self._metadata,
            on_message=self._on_frame,
            on_close=self._on_close,
            on_open=self._on_open,
            on_writable=self._flush,
        )

    def _on_open(self) -> None:
        if self._closed:
            return
        self._backoff.succeeded()
        self._last_error = ""
        self._is_end_expected = False
        self._writer = self._stream
        self.up = True
        self.on_up()

    def _on_close(self, error: RpcError | None) -> None:
        self._stream = None
        self._on_broken()
        if self._closed:
            return
        text = "it ended" if error is None else str(error)
        if text != self._last_error:
            self._last_error = text
            level = logging.INFO if self._is_end_expected else logging.WARNING
            log.log(level, "link %s is down: %s", self._path, text)
        self._retry = self._loop.call_later(self._backoff.next_delay_s(), self._open)

    def _abort(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.cancel()
            self._on_close(RpcError(Status.INTERNAL, "a frame that cannot be read"))


class _AcceptedLink(_StreamLink[Out]):
    def __init__(
        self,
        call: Call,
        codec: Codec[Out, Any],
        on_items: Callable[[list[Any]], None],
        on_down: Callable[[], None],
    ) -> None:
        super().__init__(codec, on_items, _nothing, on_down)
        self._call = call
        self._writer = call
        self.up = True
        call.on_message = self._on_frame
        call.on_half_close = self._on_half_close
        call.on_cancel = self._on_broken
        call.on_writable = self._flush
        call.accept()

    def close(self) -> None:
        if self.up:
            self._send_all(self._call)
            self._call.finish()
            self._set_down()

    def _on_half_close(self) -> None:
        self._call.finish()
        self._on_broken()

    def _abort(self) -> None:
        self._call.fail(Status.INVALID_ARGUMENT, "a frame that cannot be read")
        self._on_broken()


def _nothing() -> None:
    pass


def dial_link(  # noqa: PLR0913 (by keyword)
    channel: Channel,
    path: str,
    codec: Codec[Out, In],
    *,
    metadata: Iterable[tuple[str, str | bytes]] = (),
    on_items: Callable[[list[In]], None],
    on_up: Callable[[], None],
    on_down: Callable[[], None],
) -> Link[Out]:
    """Return a link to a server's stream method. The link reopens the stream until close()."""
    return _DialledLink(channel, path, codec, tuple(metadata), on_items, on_up, on_down)


def accept_link(
    call: Call,
    codec: Codec[Out, In],
    *,
    on_items: Callable[[list[In]], None],
    on_down: Callable[[], None],
) -> Link[Out]:
    """Return the server's end of a link, for use inside a stream handler."""
    return _AcceptedLink(call, codec, on_items, on_down)
