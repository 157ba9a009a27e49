"""Fast codec for simple items of a frame: an id, a head, inline payloads and further fields.

Requests and responses begin with the same fields. An encoded protobuf message is the concatenation
of its fields, so these bytes can be written and read directly. Reading and writing with protobuf's
message objects takes two to three times as long. Protobuf reads and writes all other items. This
module does not depend on links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core.wire.varint import VarintSequence, decode_varint, encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import Payload

# Tags of fields. InferRequest and InferResponse use the same field numbers, and so do their frames.
_ITEM: Final = 0x0A
_ID: Final = 0x08
_ID_TAG: Final = bytes((_ID,))
_HEAD: Final = 0x12
_PAYLOAD: Final = 0x1A
_INLINE: Final = 0x0A
# Maximum size of an item. It is below protobuf's own limit, so that protobuf reports the errors of
# larger items.
_MAX_BYTES: Final = 1 << 30


class PlainItems:
    """Writer or reader of one link's items. It caches encoded heads and the prefixes of fields."""

    __slots__ = (
        "_head",
        "_head_field",
        "_heads",
        "_ids",
        "_items",
        "_payloads",
        "_prefix",
        "_size",
    )

    def __init__(self) -> None:
        self._ids = VarintSequence()
        # Reading remembers parts of the last item, because the next item often has the same parts.
        # These are the head and its encoded field; below, the payload's size and the bytes in front
        # of the payload.
        self._head, self._head_field = b"", _sized(_HEAD, 0)
        self._size, self._prefix = 0, _sized(_PAYLOAD, 2) + _sized(_INLINE, 0)
        # Caches for writing. Maps a head to its encoded field; below, a payload's size to the bytes
        # in front of the payload, and an item's size to the bytes in front of the item.
        self._heads = BoundedCache[bytes, bytes](1024, 4096)
        self._payloads = BoundedCache[int, bytes](1024)
        self._items = BoundedCache[int, bytes](1024)

    def write(
        self,
        pieces: list[bytes],
        number: int,
        head: bytes,
        payloads: Sequence[Payload],
        tail: bytes = b"",
    ) -> bool:
        """Append the encoded item to pieces, and return True.

        If protobuf has to write the item, append nothing and return False.

        tail: encoded fields of the item that follow the payloads.
        """
        if number <= 0 or not head:
            return False
        field = self._heads.get(head)
        if field is None:
            field = self._heads.remember(head, _sized(_HEAD, len(head)) + head)
        start = _ID_TAG + self._ids.encode(number)
        size = len(start) + len(field)
        content: list[bytes] = [start, field]
        for payload in payloads:
            if type(payload) is not bytes:
                return False
            length = len(payload)
            prefix = self._payloads.get(length)
            if prefix is None:
                inline = _sized(_INLINE, length)
                prefix = _sized(_PAYLOAD, len(inline) + length) + inline
                self._payloads.remember(length, prefix)
            content.append(prefix)
            content.append(payload)
            size += len(prefix) + length
        if tail:
            content.append(tail)
            size += len(tail)
        if size > _MAX_BYTES:
            return False
        pieces.append(self._items.get(size) or self._items.remember(size, _sized(_ITEM, size)))
        pieces += content
        return True

    def read(
        self, frame: bytes, begin: int, end: int
    ) -> tuple[int, bytes, list[Payload], int] | None:
        """Return an item's id, head and payloads, and the position at which its other fields begin.

        Returns None if protobuf has to read the item.
        """
        # No check is needed that the id ends within the item: if it does not, the position below is
        # already past the end, and the result is None.
        if begin + 2 > end or frame[begin] != _ID:
            return None
        number, position = self._ids.decode(frame, begin + 1)
        if frame.startswith(self._head_field, position):
            position += len(self._head_field)
        else:
            if position + 2 > end or frame[position] != _HEAD:
                return None
            size, start = decode_varint(frame, position + 1)
            if start + size > end:
                return None
            self._head = frame[start : start + size]
            self._head_field = frame[position : start + size]
            position = start + size
        payloads: list[Payload] = []
        while position < end and frame[position] == _PAYLOAD:
            if frame.startswith(self._prefix, position):
                start = position + len(self._prefix)
            else:
                start = self._read_prefix(frame, position, end)
                if not start:
                    return None
            position = start + self._size
            payloads.append(frame[start:position])
        return (number, self._head, payloads, position) if position <= end else None

    def _read_prefix(self, frame: bytes, position: int, end: int) -> int:
        """Remember the bytes before a payload; return where the payload begins, 0 if not inline."""
        if position + 4 > end:
            return 0
        size, start = decode_varint(frame, position + 1)
        payload_end = start + size
        if start >= end or frame[start] != _INLINE:
            return 0
        size, start = decode_varint(frame, start + 1)
        if start + size != payload_end:
            return 0
        self._size, self._prefix = size, frame[position:start]
        return start


def item_end(frame: bytes, position: int) -> tuple[int, int]:
    """Return the start and the end of the item at a position; (0, 0) if the field is no item.

    Raises:
        DecodeError: the frame ends before the item does.
    """
    if frame[position] != _ITEM:
        return 0, 0
    size, begin = decode_varint(frame, position + 1)
    end = begin + size
    if end > len(frame):
        raise DecodeError("the frame ends within an item")
    return begin, end


def _sized(tag: int, size: int) -> bytes:
    """Return the tag and length of a length-delimited field."""
    return bytes((tag,)) + encode_varint(size)
