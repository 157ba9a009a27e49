"""Responses in Executed messages that are like the one before, cut out without a parser.

A protobuf message is the concatenation of its parts: of responses with the same head and the same
sizes, all but the payloads' bytes is equal. Reading the same from message objects takes several
times as long for each response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.wire.messages import InferResponse
from nereid.core.wire.response_prefixes import response_prefixes

if TYPE_CHECKING:
    from nereid.core.wire.messages import Payload

# Of a response without its payloads; a longer one is read by the parser.
_MAX_HEAD_BYTES: Final = 8192


class RepeatedResponses:
    """The responses of one instance that are like the last one that was read by the parser."""

    __slots__ = ("_first", "_first_size", "_head", "_others")

    def __init__(self) -> None:
        self._head = b""
        # What precedes the first payload, and its size. Empty: none is known.
        self._first = b""
        self._first_size = 0
        # Of further payloads, likewise.
        self._others: list[tuple[bytes, int]] = []

    def read(self, message: bytes) -> tuple[list[InferResponse], int]:
        """The responses that an Executed message begins with, as far as they are known, and where
        what follows them begins.
        """
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
        """response: what the parser has read at this position of a message."""
        head, payloads = response.head, response.payloads
        sizes = [len(payload) for payload in payloads if isinstance(payload, bytes)]
        if not sizes or len(sizes) < len(payloads) or len(head) > _MAX_HEAD_BYTES:
            return
        prefixes = response_prefixes(head, sizes)
        # It may have more than head and payloads, which the lengths would say.
        for prefix, size in zip(prefixes, sizes, strict=True):
            if not message.startswith(prefix, position):
                return
            position += len(prefix) + size
        self._head, self._first, self._first_size = head, prefixes[0], sizes[0]
        self._others = list(zip(prefixes[1:], sizes[1:], strict=True))
