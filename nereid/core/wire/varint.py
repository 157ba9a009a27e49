"""Protobuf's variable-length integers, for code that handles the wire format itself."""

from __future__ import annotations

from typing import Final, Protocol

from google.protobuf.message import DecodeError

# A byte holds 7 bits, so 64 bits take 10 bytes.
_END_SHIFT: Final = 70
_MAX_BYTES: Final = 10


class Bytes(Protocol):
    """Bytes-like data: bytes, memoryview or mmap."""

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


# 7 bits -> encoded byte: _LAST for the number's last byte, _FIRST for the others.
_FIRST: Final = [bytes((value | 0x80,)) for value in range(0x80)]
_LAST: Final = [bytes((value,)) for value in range(0x80)]


def encode_varint(value: int) -> bytes:
    """Encode a number, which must not be negative."""
    if value <= 0x7F:
        return _LAST[value]
    encoded = _FIRST[value & 0x7F]
    value >>= 7
    while value > 0x7F:
        # When compiled, an augmented assignment (+=) would be a call by name.
        encoded = encoded + _FIRST[value & 0x7F]
        value >>= 7
    return encoded + _LAST[value]


class VarintSequence:
    """Codec of numbers that are mostly close to the one before. It caches all but one byte."""

    __slots__ = ("_high", "_high_bytes")

    def __init__(self) -> None:
        self._high = 0
        self._high_bytes = b""

    def encode(self, value: int) -> bytes:
        """Return the same bytes as encode_varint()."""
        high = value >> 7
        if not high:
            return _LAST[value]
        if high != self._high:
            self._high, self._high_bytes = high, encode_varint(high)
        return _FIRST[value & 0x7F] + self._high_bytes

    def decode(self, data: bytes, position: int) -> tuple[int, int]:
        """Return the same result as decode_varint()."""
        first, rest = data[position], position + 1
        if first > 0x7F and self._high and data.startswith(self._high_bytes, rest):
            return self._high << 7 | first & 0x7F, rest + len(self._high_bytes)
        value, end = decode_varint(data, position)
        if value > 0x7F:
            self._high, self._high_bytes = value >> 7, data[rest:end]
        return value, end


def decode_varint(data: Bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the next position.

    Raises DecodeError if the number is cut off or does not fit into 64 bits.
    """
    if isinstance(data, bytes):
        return _decode(data, position)
    number, length = _decode(bytes(data[position : position + _MAX_BYTES]), 0)
    return number, position + length


def _decode(data: bytes, position: int) -> tuple[int, int]:
    """Decode a number. The compiled form can index bytes without a call."""
    try:
        byte = data[position]
        position += 1
        if byte < 0x80:
            return byte, position
        value, shift = byte & 0x7F, 7
        while shift < _END_SHIFT:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
    except IndexError:
        pass
    raise DecodeError("the message has a damaged number")
