"""gRPC's length-prefixed messages in the content of HTTP/2 streams: cut out, decompressed, and
sent.

Pure. Knows nothing of calls; who owns a stream gets its messages through `MessageHandler`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from nereid.rpc.grpc.compression import begin_inflation, inflate, inflated_message
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.http2 import frames
from nereid.rpc.http2.stream import CLOSED, Stream
from nereid.rpc.net.inflation import InflationLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.rpc.http2.sender import Sender
    from nereid.rpc.net.inflation import Inflation

# A flag that says whether the message is compressed, and its length.
MESSAGE_PREFIX = Struct(">BI")
_PREFIX_BYTES = MESSAGE_PREFIX.size
# A DATA frame's header and a message's prefix in one pack. Only for frames below 64 KiB.
_DATA_AND_MESSAGE_PREFIX = Struct(">BHBBIBI")
_pack_data_and_message_prefix = _DATA_AND_MESSAGE_PREFIX.pack
# Inflated at once; more is left to the handler if it can do that elsewhere.
_INLINE_INFLATION_BYTES = 32_768
# A message may come in so many pieces of any size; from then on they have this size on average, or
# each is reported.
_FREE_PIECES = 8
_SMALL_PIECE_BYTES = 256
_MANY_MESSAGES = 64


class MessageBuffer(Protocol):
    """Memory that a large message is put together in."""

    # As long as the message.
    view: memoryview


# Given the size of a message that comes in pieces, and the first of them: where to put it, or None
# for bytes.
AllocateBuffer = Callable[[int, memoryview], MessageBuffer | None]


class PartialMessage:
    """One message that arrives in pieces: its five-byte prefix, then its body."""

    __slots__ = (
        "_allocate",
        "_buffer",
        "_content",
        "_max_bytes",
        "_missing",
        "_pieces",
        "_prefix",
        "_size",
        "compressed",
        "seen_at",
    )

    def __init__(self, max_bytes: int, allocate: AllocateBuffer | None = None) -> None:
        self._allocate = allocate
        self._buffer: MessageBuffer | None = None
        self._size = 0
        self._prefix = b""
        self._max_bytes = max_bytes
        self._missing = -1
        self._pieces = 0
        # Grows with what arrives, however small the pieces are.
        self._content: io.BytesIO | None = None
        self.compressed = 0
        # For its owner: when it was first looked at; 0: it was not.
        self.seen_at = 0.0

    def feed(self, data: bytes, start: int, stop: int) -> int:
        """Consume what belongs to this message; returns where the next one starts."""
        self._pieces += 1
        if self._missing < 0:
            size = min(stop - start, _PREFIX_BYTES - len(self._prefix))
            self._prefix += data[start : start + size]
            start += size
            if len(self._prefix) < _PREFIX_BYTES:
                return start
            self.compressed, self._missing = MESSAGE_PREFIX.unpack(self._prefix)
            check_message_prefix(self.compressed, self._missing, self._max_bytes)
            self._size = self._missing
            if self.compressed:
                self._allocate = None
        size = min(stop - start, self._missing)
        if size:
            if self._allocate is not None:
                self._buffer = self._allocate(self._size, memoryview(data)[start : start + size])
                self._allocate = None
            if self._buffer is not None:
                place = self._size - self._missing
                self._buffer.view[place : place + size] = memoryview(data)[start : start + size]
            else:
                if self._content is None:
                    self._content = io.BytesIO()
                self._content.write(memoryview(data)[start : start + size])
            self._missing -= size
        return start + size

    @property
    def complete(self) -> bool:
        return self._missing == 0

    @property
    def crumbles(self) -> bool:
        """It comes in more pieces than its size needs."""
        pieces = self._pieces - _FREE_PIECES
        return pieces > 0 and self._size - self._missing < pieces * _SMALL_PIECE_BYTES

    def message(self) -> bytes | MessageBuffer:
        if self._buffer is not None:
            return self._buffer
        # Not copied: BytesIO hands out the bytes that it wrote to.
        return b"" if self._content is None else self._content.getvalue()


class HeldContent:
    """What arrives on a stream behind a message that is being inflated elsewhere. Stands in the
    place of a partial message.
    """

    __slots__ = ("ended", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        # The peer ended its side.
        self.ended = False


def check_message_prefix(compressed: int, size: int, max_bytes: int) -> None:
    """Refuse a message by its prefix, before any of its body is kept."""
    if compressed > 1:
        raise RpcError(Status.INTERNAL, "a message with an unknown flag")
    if size > max_bytes:
        raise RpcError(
            Status.RESOURCE_EXHAUSTED, f"message of {size} bytes is larger than {max_bytes} bytes"
        )


class MessageStream(Stream):
    """A stream that carries messages; calls of either role extend it, and set both attributes."""

    __slots__ = ("encoding", "partial_message")

    # The peer's grpc-encoding.
    encoding: str
    partial_message: PartialMessage | HeldContent | None

    @property
    def is_arriving(self) -> bool:
        """Whether the peer has begun to send something, and has not ended it."""
        return self.partial_message is not None

    @property
    def is_unary(self) -> bool:
        """Whether one message is all that arrives, from when the stream begins."""
        return False

    def discard_partial_input(self) -> None:
        self.partial_message = None

    def hold(self, size_bytes: int) -> None:
        """So many bytes of the peer's are kept; RpcError: they must not be."""


M = TypeVar("M", bound=MessageStream)
M_contra = TypeVar("M_contra", bound=MessageStream, contravariant=True)


class MessageHandler(Protocol[M_contra]):
    """Gets the messages of all of a connection's streams."""

    def on_message(self, stream: M_contra, message: Any) -> None:
        """A whole message, decompressed: bytes, or the buffer that was allocated for it."""

    def on_bad_message(self, stream: M_contra, error: RpcError) -> None:
        """The stream's content is no message, or one too large: nothing more can be read of it."""

    def on_crumb(self) -> None:
        """A message came in another piece that is too small to be worth it."""

    def on_many_messages(self) -> None:
        """A frame had so many small messages that it cost as much as many frames."""

    def allocator_of(self, stream: M_contra) -> AllocateBuffer | None:
        """Where the stream's messages that come in pieces are put together; None: in bytes."""

    def defer_inflation(self, stream: M_contra, inflation: Inflation) -> bool:
        """Take a message that is long to inflate; MessageReader.resume is to be called with it.
        False: inflate it at once.
        """


class MessageReader(Generic[M]):
    """Cuts messages out of the content of a connection's streams (http2.handler.ContentReader).

    Nearly every message comes in one DATA frame, and is one slice of what was received.
    """

    def __init__(
        self,
        max_message_bytes: int,
        handler: MessageHandler[M],
        max_inflation_ratio: float | None = None,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._inflation_limits = InflationLimits(
            max_bytes=max_message_bytes, max_ratio=max_inflation_ratio
        )
        self._handler = handler

    def read(self, stream: M, data: bytes, start: int, stop: int) -> None:
        messages = 0
        try:
            while start < stop:
                if stream.partial_message is None and stop - start >= 5:
                    # Compiled, this is cheaper than struct.unpack_from().
                    compressed = data[start]
                    size = (
                        data[start + 1] << 24
                        | data[start + 2] << 16
                        | data[start + 3] << 8
                        | data[start + 4]
                    )
                    end = start + 5 + size
                    if end <= stop:
                        message = data[start + 5 : end]
                        start = end
                        if compressed or size > self._max_message_bytes:
                            check_message_prefix(compressed, size, self._max_message_bytes)
                            self._read_compressed(stream, message)
                        else:
                            self._handler.on_message(stream, message)
                        if stream.state is CLOSED:
                            return
                        messages += 1
                        continue
                start = self._read_piece(stream, data, start, stop)
        except RpcError as error:
            stream.partial_message = None
            # Its traceback would keep what was received.
            self._handler.on_bad_message(stream, error.with_traceback(None))
        if messages > _MANY_MESSAGES:
            self._handler.on_many_messages()

    def _read_piece(self, stream: M, data: bytes, start: int, stop: int) -> int:
        partial = stream.partial_message
        if partial is None:
            partial = stream.partial_message = PartialMessage(
                self._max_message_bytes, self._handler.allocator_of(stream)
            )
        if isinstance(partial, HeldContent):
            stream.hold(stop - start)
            partial.pieces.append(data[start:stop])
            if stop - start < _SMALL_PIECE_BYTES:
                self._handler.on_crumb()
            return stop
        end = partial.feed(data, start, stop)
        stream.hold(end - start)
        if partial.crumbles:
            self._handler.on_crumb()
        if partial.complete:
            stream.partial_message = None
            message: Any = partial.message()
            if partial.compressed:
                self._read_compressed(stream, message)
            else:
                self._handler.on_message(stream, message)
            if stream.state is CLOSED:
                return stop
        return end

    def _read_compressed(self, stream: M, message: bytes) -> None:
        inflation = begin_inflation(stream.encoding, message, self._inflation_limits)
        inflate(inflation, _INLINE_INFLATION_BYTES)
        if not inflation.done:
            if self._handler.defer_inflation(stream, inflation):
                stream.partial_message = HeldContent()
                return
            inflate(inflation, self._max_message_bytes)
        self._handler.on_message(stream, inflated_message(inflation))

    def resume(self, stream: M, message: bytes | MessageBuffer) -> HeldContent:
        """A deferred message was inflated: deliver it and what came behind it. Returns what was
        held, with its end if that is now to be handled.
        """
        held = stream.partial_message
        assert isinstance(held, HeldContent), "nothing was deferred"
        # Not by assignment: mypyc would believe it to be None still after what is delivered below.
        stream.discard_partial_input()
        self._handler.on_message(stream, message)
        for piece in held.pieces:
            if stream.state is CLOSED:
                break
            self.read(stream, piece, 0, len(piece))
        behind = stream.partial_message
        if held.ended and isinstance(behind, HeldContent):
            # Another one: the end comes behind it.
            behind.ended = True
            held.ended = False
        return held


def send_message(
    sender: Sender[Any], stream: MessageStream, message: bytes, compressed: int = 0
) -> None:
    """One message: straight out when both windows allow it."""
    size = len(message) + 5
    if (
        stream.queue is None
        and size <= sender.quick_bytes
        and size <= stream.send_window
        and size <= sender.send_window
    ):
        stream.send_window -= size
        sender.send_window -= size
        if not sender.out:
            sender.wake()
        sender.out += (
            _pack_data_and_message_prefix(0, size, frames.DATA, 0, stream.id, compressed, size - 5),
            message,
        )
        return
    sender.enqueue(stream, (MESSAGE_PREFIX.pack(compressed, size - 5), message))


def send_message_parts(
    sender: Sender[Any], stream: MessageStream, parts: Sequence[bytes | memoryview]
) -> None:
    """One message, given in parts that are not worth joining."""
    prefix = MESSAGE_PREFIX.pack(0, sum(map(len, parts)))
    sender.enqueue(stream, (prefix, *parts))
