"""Length-prefixed messages of gRPC in the content of HTTP/2 streams."""

# layout: compiled

from __future__ import annotations

import io
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from nereid.rpc.grpc.compression import begin_inflation, inflate, inflated_message
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.http2 import frames
from nereid.rpc.http2.stream import CLOSED, Stream
from nereid.rpc.net.inflation import InflationLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.rpc.http2.sender import Sender
    from nereid.rpc.net.inflation import Inflation

MESSAGE_PREFIX: Final = Struct(">BI")
_PREFIX_BYTES: Final = MESSAGE_PREFIX.size
# Packs a DATA frame's header and the message's prefix in one call. The frame must be smaller than
# 64 KiB.
_DATA_AND_MESSAGE_PREFIX: Final = Struct(">BHBBIBI")
_pack_data_and_message_prefix: Final = _DATA_AND_MESSAGE_PREFIX.pack
# A message up to this size is inflated at once. The handler may defer a larger one.
_INLINE_INFLATION_BYTES: Final = 32_768
# A message may arrive in this many pieces of any size. Further pieces are reported if the average
# piece is below _SMALL_PIECE_BYTES.
_FREE_PIECES: Final = 8
_SMALL_PIECE_BYTES: Final = 256
_MANY_MESSAGES: Final = 64


class MessageBuffer(Protocol):
    """Memory in which the pieces of a large message are joined."""

    # Exactly as long as the message.
    view: memoryview


# Arguments: the message's size and first piece. None means that the message is received as bytes.
AllocateBuffer = Callable[[int, memoryview], MessageBuffer | None]


class PartialMessage:
    """Message that arrives in pieces: first its prefix of five bytes, then its body."""

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
        # The body if there is no buffer. BytesIO is cheap even if the pieces are tiny.
        self._content: io.BytesIO | None = None
        self.compressed = 0
        # Time at which the owner first saw the message; 0 before that.
        self.seen_at = 0.0

    def feed(self, data: bytes, start: int, stop: int) -> int:
        """Consume bytes of this message; return the position at which the message stops."""
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
        """True if the whole message has arrived."""
        return self._missing == 0

    @property
    def has_too_many_pieces(self) -> bool:
        """True if the message has arrived in more pieces than its size justifies."""
        pieces = self._pieces - _FREE_PIECES
        return pieces > 0 and self._size - self._missing < pieces * _SMALL_PIECE_BYTES

    def message(self) -> bytes | MessageBuffer:
        """Return the complete message: its buffer if there is one, else bytes."""
        if self._buffer is not None:
            return self._buffer
        # BytesIO returns its bytes object without a copy.
        return b"" if self._content is None else self._content.getvalue()


class ContentBehindInflation:
    """Content of a stream, held back while the preceding message is inflated elsewhere."""

    __slots__ = ("ended", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ended = False


def check_message_prefix(compressed: int, size: int, max_bytes: int) -> None:
    """Raise RpcError if the prefix of a message is invalid or its size exceeds the limit."""
    if compressed > 1:
        raise RpcError(Status.INTERNAL, "a message with an unknown flag")
    if size > max_bytes:
        raise RpcError(
            Status.RESOURCE_EXHAUSTED, f"message of {size} bytes is larger than {max_bytes} bytes"
        )


class MessageStream(Stream):
    """Stream that carries messages: a call of a server or client, which sets both attributes."""

    __slots__ = ("encoding", "partial_message")

    encoding: str
    partial_message: PartialMessage | ContentBehindInflation | None

    @property
    def is_arriving(self) -> bool:
        """True if a request or message of the peer has begun to arrive and is not complete."""
        return self.partial_message is not None

    @property
    def is_unary(self) -> bool:
        """True if the peer sends exactly one message, which is due from the start of the stream."""
        return False

    def discard_partial_input(self) -> None:
        """Drop the part of a message that has arrived."""
        self.partial_message = None

    def hold(self, size_bytes: int) -> None:
        """Count bytes of the peer that are kept in memory; raise RpcError if over a limit."""


M = TypeVar("M", bound=MessageStream)
M_contra = TypeVar("M_contra", bound=MessageStream, contravariant=True)


class MessageHandler(Protocol[M_contra]):
    """Receiver of the messages of all streams of a connection."""

    def on_message(self, stream: M_contra, message: Any) -> None:
        """Handle a decompressed message: bytes, or the buffer that was allocated for it."""

    def on_bad_message(self, stream: M_contra, error: RpcError) -> None:
        """Handle a stream whose content is invalid or too large. No more of its content is read."""

    def on_tiny_piece(self) -> None:
        """Handle a piece that is too small for the work that it causes."""

    def on_many_messages(self) -> None:
        """Handle a DATA frame with so many small messages that it costs like many frames."""

    def allocator_of(self, stream: M_contra) -> AllocateBuffer | None:
        """Return the allocator for messages that arrive in pieces; None to receive bytes."""

    def defer_inflation(self, stream: M_contra, inflation: Inflation) -> bool:
        """Return True to take over an inflation, and call MessageReader.resume() after it."""


class MessageReader(Generic[M]):
    """Reader that cuts the content of streams into messages."""

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
        """Read `data[start:stop]` of a DATA frame, and deliver the complete messages."""
        messages = 0
        try:
            while start < stop:
                if stream.partial_message is None and stop - start >= 5:
                    # When compiled, this is faster than struct.unpack_from().
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
        except MemoryError:
            stream.partial_message = None
            error = RpcError(Status.RESOURCE_EXHAUSTED, "not enough memory for the message")
            self._handler.on_bad_message(stream, error)
        except RpcError as error:
            stream.partial_message = None
            # The traceback would keep the received data in memory.
            self._handler.on_bad_message(stream, error.with_traceback(None))
        if messages > _MANY_MESSAGES:
            self._handler.on_many_messages()

    def _read_piece(self, stream: M, data: bytes, start: int, stop: int) -> int:
        partial = stream.partial_message
        if partial is None:
            partial = stream.partial_message = PartialMessage(
                self._max_message_bytes, self._handler.allocator_of(stream)
            )
        if isinstance(partial, ContentBehindInflation):
            stream.hold(stop - start)
            partial.pieces.append(data[start:stop])
            if stop - start < _SMALL_PIECE_BYTES:
                self._handler.on_tiny_piece()
            return stop
        end = partial.feed(data, start, stop)
        stream.hold(end - start)
        if partial.has_too_many_pieces:
            self._handler.on_tiny_piece()
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
                stream.partial_message = ContentBehindInflation()
                return
            inflate(inflation, self._max_message_bytes)
        self._handler.on_message(stream, inflated_message(inflation))

    def resume(self, stream: M, message: bytes | MessageBuffer) -> ContentBehindInflation:
        """Deliver an inflated message, then the content held back after it.

        If the result's `ended` is True, the caller has to handle the end of the peer's side.
        """
        held = stream.partial_message
        assert isinstance(held, ContentBehindInflation), "nothing was deferred"
        # Do not assign None: mypyc would then assume None even after the deliveries below.
        stream.discard_partial_input()
        self._handler.on_message(stream, message)
        for piece in held.pieces:
            if stream.state is CLOSED:
                break
            self.read(stream, piece, 0, len(piece))
        behind = stream.partial_message
        if held.ended and isinstance(behind, ContentBehindInflation):
            # Another message was deferred. The end of the peer's side comes after that message.
            behind.ended = True
            held.ended = False
        return held


def send_message(
    sender: Sender[Any], stream: MessageStream, message: bytes, compressed: int = 0
) -> None:
    """Send one message, directly to the output if windows and frame size allow it."""
    size = len(message) + 5
    if sender.take_window(stream, size):
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
    """Send one message that is given in parts, without joining the parts."""
    prefix = MESSAGE_PREFIX.pack(0, sum(map(len, parts)))
    sender.enqueue(stream, (prefix, *parts))
