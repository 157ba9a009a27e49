"""What a handler sees of one RPC, whichever engine carries it, and the table of handlers.

Nothing here knows of sockets or frames.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nereid.rpc.grpc.dispatch import guarded
from nereid.rpc.grpc.status import Status

_NONE: tuple[str, ...] = ()
# What each engine's call has slots for. Not in Call itself: our own engine's is a stream as well,
# and only one of two bases may have slots.
SLOTS: tuple[str, ...] = (
    "deadline",
    "done",
    "metadata",
    "on_cancel",
    "on_half_close",
    "on_message",
    "on_writable",
    "path",
    "peer",
)


class Call:
    """One RPC on the server. Used from the event loop's thread only; created by an engine.

    Once `done`, which is after the answer, a reset, a broken connection or a passed deadline,
    answering is a silent no-op.
    """

    # By a name, as a literal would make mypy refuse assignments to what is declared here.
    __slots__ = _NONE

    path: str
    peer: str
    # Lower-case keys; values of keys ending in -bin are bytes.
    metadata: Sequence[tuple[str, str | bytes]]
    # On time.monotonic()'s clock.
    deadline: float | None
    # Called once, when the peer, the connection or the deadline ended the call before its answer
    # was given.
    on_cancel: Callable[[], None] | None
    # Streams only, set when the call is opened.
    on_message: Callable[[bytes], None] | None
    on_half_close: Callable[[], None] | None
    # `buffered_bytes` fell below the low-water mark (64 KiB) after it was above, or to nothing.
    on_writable: Callable[[], None] | None
    done: bool

    def __init__(
        self,
        path: str,
        peer: str,
        metadata: Sequence[tuple[str, str | bytes]],
        deadline: float | None = None,
    ) -> None:
        self.path = path
        self.peer = peer
        self.metadata = metadata
        self.deadline = deadline
        self.on_cancel = self.on_message = self.on_half_close = self.on_writable = None
        self.done = False

    @property
    def buffered_bytes(self) -> int:
        """Sent, but not yet taken by the peer's window or the socket. Sending never blocks."""
        raise NotImplementedError

    def get(self, key: str) -> str | bytes | None:
        """The first value of a metadata key."""
        for name, value in self.metadata:
            if name == key:
                return value
        return None

    def reply(self, message: bytes) -> None:
        """Unary: the answer and OK, in one piece."""
        raise NotImplementedError

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Unary: an answer given in parts, which are not joined where that can be avoided."""
        self.reply(b"".join(parts))

    def accept(self) -> None:
        """Streams: send the response's head now, so that the client knows the stream is open."""
        raise NotImplementedError

    def send(self, message: bytes) -> None:
        """Streams: one message."""
        raise NotImplementedError

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        raise NotImplementedError

    def fail(
        self, status: Status, message: str, trailers: Iterable[tuple[str, str | bytes]] = ()
    ) -> None:
        self.finish(status, message, trailers)

    def settle(self) -> None:
        """No answer may follow: drop whatever the handler hung on the call."""
        self.done = True
        self.on_cancel = self.on_message = self.on_half_close = self.on_writable = None

    def cancel(self) -> None:
        """The peer, the connection or the deadline ended the call."""
        if not self.done:
            callback = self.on_cancel
            self.settle()
            if callback is not None:
                guarded(self, callback)

    def trust(self) -> None:
        """The peer may be silent for as long as it likes: others know whether it is there."""

    def pause(self) -> None:
        """Streams: stop giving the client's window back."""
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError


class MessageBuffer(Protocol):
    """Memory that a large message is put together in."""

    # As long as the message.
    view: memoryview


# Given the size of a message that comes in pieces, and the first of them: where to put it, or None.
AllocateBuffer = Callable[[int, memoryview], MessageBuffer | None]
# With a Room in the place of the bytes where its path has rooms and the message came in one.
UnaryHandler = Callable[[Call, Any], None]
AsyncUnaryHandler = Callable[[Call, bytes], Awaitable[bytes]]
StreamHandler = Callable[[Call], None]


@dataclass(frozen=True)
class Handlers:
    """Methods by path. `unary` handlers are plain functions and must not block; `async_unary` run
    as tasks.
    """

    unary: Mapping[str, UnaryHandler] = field(default_factory=dict)
    async_unary: Mapping[str, AsyncUnaryHandler] = field(default_factory=dict)
    stream: Mapping[str, StreamHandler] = field(default_factory=dict)
    # Methods whose answers are worth compressing, where the server's options ask for it.
    compressible: frozenset[str] = frozenset()
    # For unary paths whose large messages shall not be put together in bytes.
    rooms: Mapping[str, AllocateBuffer] = field(default_factory=dict)
