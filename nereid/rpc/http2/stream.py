"""Records of streams with their state machine (RFC 9113 5.1), and a connection's table of them."""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections import deque

_REMEMBERED_RESETS = 512


class StreamState(IntEnum):
    """The RFC's states, without idle (no record yet) and reserved (push is off).

    Each side that has ended sets one bit.
    """

    OPEN = 0
    HALF_CLOSED_LOCAL = 1
    HALF_CLOSED_REMOTE = 2
    CLOSED = 3


class StreamEvent(Enum):
    """Event that changes a stream's state."""

    END_SENT = auto()
    END_RECEIVED = auto()
    # RST_STREAM in either direction, a GOAWAY that excludes the stream, or a lost connection.
    RESET = auto()


OPEN = StreamState.OPEN
HALF_CLOSED_LOCAL = StreamState.HALF_CLOSED_LOCAL
HALF_CLOSED_REMOTE = StreamState.HALF_CLOSED_REMOTE
CLOSED = StreamState.CLOSED

# END_SENT is no error in CLOSED: a call may complete while its connection is torn down.
TRANSITIONS: dict[StreamEvent, dict[StreamState, StreamState]] = {
    StreamEvent.END_SENT: {
        OPEN: HALF_CLOSED_LOCAL,
        HALF_CLOSED_REMOTE: CLOSED,
        CLOSED: CLOSED,
    },
    StreamEvent.END_RECEIVED: {
        OPEN: HALF_CLOSED_REMOTE,
        HALF_CLOSED_LOCAL: CLOSED,
    },
    StreamEvent.RESET: dict.fromkeys(StreamState, CLOSED),
}
# A transition on the hot path is one look-up: stream.state = AFTER_END_SENT[stream.state].
AFTER_END_SENT = TRANSITIONS[StreamEvent.END_SENT]
AFTER_END_RECEIVED = TRANSITIONS[StreamEvent.END_RECEIVED]
AFTER_RESET = TRANSITIONS[StreamEvent.RESET]
# Masks of states, as in stream.state & REMOTE_CLOSED.
LOCAL_CLOSED = 1
REMOTE_CLOSED = 2


class Stream:
    """Record of one stream; calls of both roles extend it."""

    __slots__ = (
        "above_low_water",
        "id",
        "paused",
        "queue",
        "queued_bytes",
        "remaining_content_bytes",
        "send_window",
        "state",
        "trailers",
        "unacknowledged_bytes",
    )

    def __init__(self, stream_id: int, send_window: int) -> None:
        self.id = stream_id
        self.state = OPEN
        self.send_window = send_window
        # Content that windows hold back, and the trailers that end our side after it.
        self.queue: deque[memoryview] | None = None
        self.queued_bytes = 0
        self.trailers: bytes | None = None
        self.above_low_water = False
        # Bytes received that no WINDOW_UPDATE has given back yet.
        self.unacknowledged_bytes = 0
        # Reasons to withhold the stream's window, as bits that its owner defines; 0 means that it
        # is not withheld.
        self.paused = 0
        # Bytes that content-length announced and that have not arrived yet; `None` if nothing was
        # announced.
        self.remaining_content_bytes: int | None = None

    def notify_writable(self) -> None:
        """Handle a queue that fell below the low-water mark or became empty."""

    def discard_partial_input(self) -> None:
        """Drop what was kept of an incomplete message, because the stream was reset."""


S = TypeVar("S", bound=Stream)


class StreamTable(Generic[S]):
    """Streams of a connection, all of which the client opens.

    open: records of the streams that are not closed, by id.
    last_id: highest id ever opened.
    last_refused_id: highest id refused after a GOAWAY that named `last_id`.
    """

    def __init__(self) -> None:
        self.open: dict[int, S] = {}
        self.last_id = 0
        self.last_refused_id = 0
        self._reset_here: dict[int, None] = {}

    def is_idle(self, stream_id: int) -> bool:
        """Return whether a stream was never opened, or never will be: even ids are for push."""
        highest = max(self.last_id, self.last_refused_id)
        return stream_id > highest or not stream_id & 1

    def remember_reset(self, stream_id: int) -> None:
        """Remember a stream that we reset.

        The peer may not know yet: its frames that are still on their way are no error.
        """
        if len(self._reset_here) >= _REMEMBERED_RESETS:
            del self._reset_here[next(iter(self._reset_here))]
        self._reset_here[stream_id] = None

    def was_reset_here(self, stream_id: int) -> bool:
        """Return whether we reset a stream lately."""
        return stream_id in self._reset_here
