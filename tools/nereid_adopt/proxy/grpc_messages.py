"""Messages in the content of gRPC calls, for copies."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.rpc.grpc.messages import MessageReader, MessageStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.grpc.messages import AllocateBuffer
    from nereid.rpc.grpc.status import RpcError
    from nereid.rpc.net.inflation import Inflation
    from nereid_adopt.proxy.proxy_stream import Block

# Length of the prefix of a message.
PREFIX_BYTES: Final = 5


def whole_message(content: bytes) -> bytes | None:
    """Return the message if the content is one that is not compressed, else `None`."""
    if len(content) < PREFIX_BYTES or content[0]:
        return None
    size = content[1] << 24 | content[2] << 16 | content[3] << 8 | content[4]
    return content[PREFIX_BYTES:] if size == len(content) - PREFIX_BYTES else None


class Messages:
    """Reader of the messages in one direction of a call."""

    def __init__(self, on_message: Callable[[bytes], None], max_bytes: int) -> None:
        self._on_message = on_message
        self._stream = MessageStream(0, 0)
        self._stream.encoding = "identity"
        self._stream.partial_message = None
        self._reader: MessageReader[MessageStream] = MessageReader(max_bytes, self)
        self.failed = False

    def begin(self, head: Block | None) -> None:
        """Begin a call: note how the messages are compressed."""
        encoding = None if head is None else head.get(b"grpc-encoding")
        self._stream.encoding = "identity" if encoding is None else encoding.decode("latin-1")
        self._stream.partial_message = None
        self.failed = False

    def feed(self, content: bytes) -> None:
        """Read content."""
        if not self.failed:
            self._reader.read(self._stream, content, 0, len(content))

    def on_message(self, stream: MessageStream, message: bytes) -> None:  # noqa: ARG002
        """Pass on a message."""
        self._on_message(message)

    def on_bad_message(self, stream: MessageStream, error: RpcError) -> None:  # noqa: ARG002
        """Read no further: the content is passed on all the same."""
        self.failed = True

    def on_tiny_piece(self) -> None:
        """Do nothing."""

    def on_many_messages(self) -> None:
        """Do nothing."""

    def allocator_of(self, stream: MessageStream) -> AllocateBuffer | None:  # noqa: ARG002
        """Return None: messages are bytes."""
        return None

    def defer_inflation(self, stream: MessageStream, inflation: Inflation) -> bool:  # noqa: ARG002
        """Return False: messages are inflated at once."""
        return False
