"""A frame on a channel, with what a story says of it."""

from __future__ import annotations

from typing import NamedTuple


class Message(NamedTuple):
    body: bytes
    text: str

    def __str__(self) -> str:
        return self.text
