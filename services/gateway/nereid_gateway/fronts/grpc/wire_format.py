"""Splits a large ModelInferRequest in place into tensors and a rest, which protobuf then parses."""

# layout: compiled

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.core.wire.varint import decode_varint

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODEL_NAME: Final = 1
_MODEL_VERSION: Final = 2
_REQUEST_ID: Final = 3
_RAW_INPUT_CONTENTS: Final = 7
MAX_FIELDS: Final = 4096
# No file system has longer names, so a longer name cannot be the name of a model.
MAX_NAME_BYTES: Final = 1024
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def split_tensors(message: memoryview) -> tuple[bytes, list[tuple[int, int]]]:
    """Return all fields except the raw tensors, and the begin and end of each raw tensor.

    May raise DecodeError.
    """
    rest: list[memoryview] = []
    places: list[tuple[int, int]] = []
    for number, kind, begin, start, end in _fields(message):
        if number == _RAW_INPUT_CONTENTS and kind == _LENGTH_DELIMITED:
            if end > len(message):
                raise DecodeError("the message is cut off")
            places.append((start, end))
        else:
            rest.append(message[begin:end])
    return b"".join(rest), places


class Outline(NamedTuple):
    """Names in a message, and the size of the message without its tensors."""

    model: str
    version: str
    request_id: str
    # Bytes of all fields except the raw tensors. Fields after MAX_FIELDS are not read, so that all
    # bytes of such a message count.
    rest_bytes: int


def outline(message: memoryview) -> Outline:
    """Return the outline of a message. May raise DecodeError.

    The time that this takes does not depend on the message's size.
    """
    names: dict[int, str] = {}
    raw_bytes = count = 0
    for number, kind, begin, start, end in islice(_fields(message), MAX_FIELDS):
        count += 1
        if kind != _LENGTH_DELIMITED:
            continue
        if number == _RAW_INPUT_CONTENTS:
            raw_bytes += end - begin
        elif number in (_MODEL_NAME, _MODEL_VERSION, _REQUEST_ID):
            names[number] = bytes(message[start : min(end, start + MAX_NAME_BYTES)]).decode(
                "utf-8", "replace"
            )
    return Outline(
        names.get(_MODEL_NAME, ""),
        names.get(_MODEL_VERSION, ""),
        names.get(_REQUEST_ID, ""),
        len(message) if count == MAX_FIELDS else len(message) - raw_bytes,
    )


def first_tensor_offset(beginning: memoryview) -> int:
    """Return the offset of the first raw tensor, or 0 if the beginning does not show it."""
    try:
        for number, kind, _, start, _ in islice(_fields(beginning), MAX_FIELDS):
            if number == _RAW_INPUT_CONTENTS and kind == _LENGTH_DELIMITED:
                return start
    except DecodeError:
        return 0
    return 0


def _fields(message: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield each field's number, kind, begin, begin of content, and end.

    If the message is incomplete, the last end lies after the end of the data.
    """
    position, size = 0, len(message)
    while position < size:
        begin = position
        key, position = decode_varint(message, position)
        kind = key & 7
        if kind == _LENGTH_DELIMITED:
            length, start = decode_varint(message, position)
            position = start + length
        elif kind == _VARINT:
            start = position
            _, position = decode_varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            start = position
            position += 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError("the message has a field of an unknown kind")
        yield key >> 3, kind, begin, start, position
