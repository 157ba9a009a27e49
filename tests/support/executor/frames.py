"""An instance's stream for a model of arrays: what has arrived, and what is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nereid.core.errors import Unavailable


class Frames:
    """Ends behind its frames; `on_read` runs when it is read from while batches execute."""

    def __init__(self, *frames: bytes, on_read: Callable[[], None] = lambda: None) -> None:
        self.frames = deque(frames)
        self.sent: list[bytes] = []
        self.on_read = on_read
        self.fails = False

    @property
    def ended(self) -> bool:
        return not self.frames

    @property
    def has_input(self) -> bool:
        return bool(self.frames)

    def fileno(self) -> int:
        raise AssertionError("it does not poll")

    def receive(self) -> bytes | None:
        return self.frames.popleft() if self.frames else None

    def read_messages(self) -> list[bytes]:
        self.on_read()
        arrived, self.frames = [*self.frames], deque()
        return arrived

    def send(self, message: bytes) -> None:
        if self.fails:
            raise Unavailable("the stream is broken")
        self.sent.append(message)


class OpenFrames(Frames):
    """Frames that nobody ends."""

    ended = False
