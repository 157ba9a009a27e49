"""Framing of BYTES tensors: each element is a 4-byte little-endian length and its bytes.

This module must not import numpy: services use it at their start.
"""

from __future__ import annotations

from itertools import chain, islice
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Buffer = bytes | bytearray | memoryview

_LENGTH = Struct("<I")
_BYTES_ONLY: Final = {bytes}
_JOINED_AT_ONCE: Final = 65536


def split_bytes(raw: Buffer) -> list[bytes]:
    """Return the elements of a raw BYTES tensor; raise InvalidArgument if it is cut off."""
    return _split_until(raw, 0, len(raw))[0]


def split_in_slices(raw: Buffer, slice_bytes: int) -> Iterator[list[bytes]]:
    """Yield the elements in lists of about `slice_bytes`; raise like split_bytes()."""
    position, end = 0, len(raw)
    while position < end:
        elements, position = _split_until(raw, position, min(position + slice_bytes, end))
        yield elements


def _split_until(raw: Buffer, position: int, stop: int) -> tuple[list[bytes], int]:
    """Return the elements that begin between two positions, and the next position."""
    elements: list[bytes] = []
    append = elements.append
    unpack = _LENGTH.unpack_from
    view = memoryview(raw)
    end = len(raw)
    while position < stop:
        if position + 4 > end:
            raise InvalidArgument("incomplete string length indicator")
        start = position + 4
        position = start + unpack(raw, position)[0]
        if position > end:
            raise InvalidArgument("incomplete string data")
        append(bytes(view[start:position]))
    return elements, position


def join_bytes(elements: Iterable[bytes | str]) -> bytes:
    """Return the raw bytes of a BYTES tensor with these elements; text is encoded as UTF-8."""
    rest = iter(elements)
    # In slices, because a list of short elements takes twenty times their memory.
    pieces = []
    while data := list(islice(rest, _JOINED_AT_ONCE)):
        pieces.append(_join_some(data))
    return b"".join(pieces)


def _join_some(data: list[Any]) -> bytes:
    if set(map(type, data)) - _BYTES_ONLY:
        data = [
            element.encode() if isinstance(element, str) else bytes(element) for element in data
        ]
    lengths = map(_LENGTH.pack, map(len, data))
    return b"".join(chain.from_iterable(zip(lengths, data, strict=True)))
