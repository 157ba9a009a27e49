"""Reads responses in Executed messages without a parser, if they resemble an earlier response.

Responses with the same head and payload sizes differ only in payload bytes. A parser takes several
times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.wire.messages import InferResponse
from nereid.core.wire.response_prefixes import response_prefixes

if TYPE_CHECKING:
    from nereid.core.wire.messages import Payload

# Longer heads are always parsed.
_MAX_HEAD_BYTES: Final = 8192


class RepeatedResponses:
    """Read responses with the head and payload sizes of the instance's last parsed response."""

    __slots__ = ("_first", "_first_size", "_head", "_others")

    def __init__(self) -> None:
        self._head = b""
        # Bytes before the first payload (empty until a response was parsed), and its size.
        self._first = b""
        self._first_size = 0
        # Bytes before each further payload, and its size.
        self._others: list[tuple[bytes, int]] = []

    def read(self, message: bytes) -> tuple[list[InferResponse], int]:
        """Return the responses that fit at the start of a message, and the position after them."""
        responses: list[InferResponse] = []
        first, others, head = self._first, self._others, self._head
        if not first:
            return responses, 0
        position, length = 0, len(message)
        before, size = len(first), self._first_size
        while message[position : position + before] == first:
            begin = position + before
            end = begin + size
            payloads: list[Payload] = [message[begin:end]]
            for prefix, further in others:
                begin = end + len(prefix)
                if message[end:begin] != prefix:
                    return responses, position
                end = begin + further
                payloads.append(message[begin:end])
            if end > length:
                break
            responses.append(InferResponse(0, head, payloads))
            position = end
        return responses, position

    def learn(self, message: bytes, position: int, response: InferResponse) -> None:
        """Remember a response that the parser has read at this position of a message."""
        head, payloads = response.head, response.payloads
        sizes = [len(payload) for payload in payloads if isinstance(payload, bytes)]
        if not sizes or len(sizes) < len(payloads) or len(head) > _MAX_HEAD_BYTES:
            return
        prefixes = response_prefixes(head, sizes)
        # Other fields than head and payloads cannot be learned.
        for prefix, size in zip(prefixes, sizes, strict=True):
            if not message.startswith(prefix, position):
                return
            position += len(prefix) + size
        self._head, self._first, self._first_size = head, prefixes[0], sizes[0]
        self._others = list(zip(prefixes[1:], sizes[1:], strict=True))
