"""Requests that differ from an earlier one in their tensors' bytes alone, which most clients send:
recognised by the bytes before the tensors, and read without a parser.

Pure. A request with an id or parameters is never such a one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.bounded_cache import BoundedCache
from nereid.core.wire.messages import InferRequest
from nereid.core.wire.varint import encode_varint
from nereid_gateway.core.request_head import CACHED_HEADS, MAX_CACHED_HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

# raw_input_contents
_RAW_TAG: Final = b"\x3a"


class _Layout(NamedTuple):
    # Of the InferRequest.
    head: bytes
    # Of the whole message.
    size_bytes: int
    # Where the first tensor ends, and for each other one: what precedes it, and where that and the
    # tensor begin and the tensor ends.
    first_end: int
    others: tuple[tuple[bytes, int, int, int], ...]


class MessageLayouts:
    """What is remembered of one gateway's messages."""

    def __init__(self) -> None:
        # By the bytes before the first tensor.
        self._layouts = BoundedCache[bytes, _Layout](CACHED_HEADS, MAX_CACHED_HEAD_BYTES)
        # How many bytes come before the first tensor of a message of this size, most likely.
        self._prefix_bytes = BoundedCache[int, int](CACHED_HEADS)

    def read(self, message: bytes) -> InferRequest | None:
        """The request in a message; None: it has to be parsed."""
        size_bytes = len(message)
        start = self._prefix_bytes.get(size_bytes)
        if start is None:
            return None
        layout = self._layouts.get(message[:start])
        if layout is None or layout.size_bytes != size_bytes:
            return None
        head, _, end, others = layout
        if not others:
            return InferRequest(0, head, [message[start:]])
        payloads = [message[start:end]]
        for preceding, begin, start, end in others:
            if message[begin:start] != preceding:
                return None
            payloads.append(message[start:end])
        return InferRequest(0, head, payloads)  # type: ignore[arg-type]  # bytes are payloads

    def remember(self, message: bytes, rest: bytes, head: bytes, payloads: Sequence[Any]) -> None:
        """A message was parsed. rest: what it consists of but for its tensors, serialised; if it
        does not begin with that, nothing is remembered. head: of the request.
        """
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
