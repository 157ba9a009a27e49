"""Recognises requests that differ from an earlier one only in tensor bytes, and skips the parser.

Most clients send such requests. A request with an id or parameters is never recognised.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.bounded_cache import BoundedCache
from nereid.core.wire.varint import encode_varint
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import CACHED_HEADS, MAX_CACHED_HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

_RAW_TAG: Final = b"\x3a"


class _Layout(NamedTuple):
    head: bytes
    size_bytes: int
    # `first_end`: end of the first tensor. `others`: for each further tensor, the bytes before it,
    # their position, its begin and its end.
    first_end: int
    others: tuple[tuple[bytes, int, int, int], ...]


class MessageLayouts:
    """Layouts of messages that one gateway has decoded."""

    def __init__(self) -> None:
        # Key: the bytes before the first tensor.
        self._layouts = BoundedCache[bytes, _Layout](CACHED_HEADS, MAX_CACHED_HEAD_BYTES)
        # Key: a message's size. Value: the likely number of bytes before its first tensor.
        self._prefix_bytes = BoundedCache[int, int](CACHED_HEADS)

    def read(self, message: bytes) -> ClientRequest | None:
        """Return the request in a message, or None if the message has to be parsed."""
        size_bytes = len(message)
        start = self._prefix_bytes.get(size_bytes)
        if start is None:
            return None
        layout = self._layouts.get(message[:start])
        if layout is None or layout.size_bytes != size_bytes:
            return None
        head, _, end, others = layout
        if not others:
            return ClientRequest(0, head, [message[start:]])
        payloads = [message[start:end]]
        for preceding, begin, start, end in others:
            if message[begin:start] != preceding:
                return None
            payloads.append(message[start:end])
        return ClientRequest(0, head, payloads)  # type: ignore[arg-type]  # bytes are payloads

    def remember(self, message: bytes, rest: bytes, head: bytes, payloads: Sequence[Any]) -> None:
        """Keep the layout of a parsed message. rest: the serialised message without tensors."""
        if not payloads or not message.startswith(rest):
            return
        places = []
        end = len(rest)
        for payload in payloads:
            begin = end
            preceding = _RAW_TAG + encode_varint(len(payload))
            start = begin + len(preceding)
            end = start + len(payload)
            if message[begin:start] != preceding:
                return
            places.append((preceding, begin, start, end))
        if end == len(message):
            _, _, start, first_end = places[0]
            self._layouts.remember(message[:start], _Layout(head, end, first_end, (*places[1:],)))
            self._prefix_bytes.remember(end, start)
