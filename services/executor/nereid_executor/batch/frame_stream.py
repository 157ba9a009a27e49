"""Describes an instance's stream, as runners and adapters see it."""

from __future__ import annotations

from typing import Protocol


class FrameStream(Protocol):
    """The methods of a BlockingStream that are used."""

    @property
    def ended(self) -> bool:
        """True if no further frame will come."""

    @property
    def has_input(self) -> bool:
        """True if read_messages() has a result even though the socket has nothing to read."""

    def fileno(self) -> int:
        """Return the socket's descriptor."""

    def receive(self) -> bytes | None:
        """Wait for the next frame and return it, or `None` after the end of the stream."""

    def read_messages(self) -> list[bytes]:
        """Return the frames that have arrived, without waiting."""

    def send(self, message: bytes) -> None:
        """Send a frame."""
