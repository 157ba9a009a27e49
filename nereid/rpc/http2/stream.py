"""Records of streams, with the state machine of RFC 9113 5.1, and a connection's stream table."""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections import deque

_REMEMBERED_RESETS: Final = 512


class StreamState(IntEnum):
    """States of RFC 9113. Each side has a bit, which is set when the side has ended.

    "idle" (no record exists) and "reserved" (push is off) are missing.
    """

    OPEN = 0
    HALF_CLOSED_LOCAL = 1
    HALF_CLOSED_REMOTE = 2
    CLOSED = 3


class StreamEvent(Enum):
    """Event that changes the state of a stream."""

    END_SENT = auto()
    END_RECEIVED = auto()
    # By RST_STREAM in either direction, a GOAWAY that excludes the stream, or a lost connection.
    RESET = auto()


OPEN: Final = StreamState.OPEN
HALF_CLOSED_LOCAL: Final = StreamState.HALF_CLOSED_LOCAL
HALF_CLOSED_REMOTE: Final = StreamState.HALF_CLOSED_REMOTE
CLOSED: Final = StreamState.CLOSED

# END_SENT is allowed in CLOSED: a call may complete while its connection is being closed.
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
# For the hot path, where a transition is one look-up.
AFTER_END_SENT: Final = TRANSITIONS[StreamEvent.END_SENT]
AFTER_END_RECEIVED: Final = TRANSITIONS[StreamEvent.END_RECEIVED]
AFTER_RESET: Final = TRANSITIONS[StreamEvent.RESET]
# Bit masks, for example for stream.state & REMOTE_CLOSED.
LOCAL_CLOSED: Final = 1
REMOTE_CLOSED: Final = 2


class Stream:
    """Record of one stream. Calls of servers and of clients derive from it."""

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
        # Content that waits for the windows, and the trailers that follow it.
        self.queue: deque[memoryview] | None = None
        self.queued_bytes = 0
        self.trailers: bytes | None = None
        self.above_low_water = False
        # Received bytes for which no WINDOW_UPDATE has been sent.
        self.unacknowledged_bytes = 0
        # Bits: the owner's reasons not to reopen the stream's window.
        self.paused = 0
        # Bytes of content-length that have not arrived; `None` without content-length.
        self.remaining_content_bytes: int | None = None

    def notify_writable(self) -> None:
        """Handle a queue that has become empty, or has fallen below the low-water mark."""

    def discard_partial_input(self) -> None:
        """Drop the received part of an incomplete message, because the stream was reset."""


S = TypeVar("S", bound=Stream)


class StreamTable(Generic[S]):
    """Streams of a connection, all opened by the client.

    open: maps an id to the record of a stream that is not closed. last_id: highest id of opened
    streams. last_refused_id: highest id refused after a GOAWAY.
    """

    def __init__(self) -> None:
        self.open: dict[int, S] = {}
        self.last_id = 0
        self.last_refused_id = 0
        self._reset_here: dict[int, None] = {}

    def is_idle(self, stream_id: int) -> bool:
        """Return whether no such stream was opened. Even ids are for push, and never opened."""
        highest = max(self.last_id, self.last_refused_id)
        return stream_id > highest or not stream_id & 1

    def remember_reset(self, stream_id: int) -> None:
        """Remember that we reset a stream. Later frames of the peer are then no error."""
        if len(self._reset_here) >= _REMEMBERED_RESETS:
            del self._reset_here[next(iter(self._reset_here))]
        self._reset_here[stream_id] = None

    def was_reset_here(self, stream_id: int) -> bool:
        """Return whether we have reset this stream recently."""
        return stream_id in self._reset_here
