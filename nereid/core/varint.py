"""Protobuf's variable-length integers, for those who read or write its wire format by hand."""

from __future__ import annotations

from typing import Final, Protocol

from google.protobuf.message import DecodeError

# Of 64 bits, 7 to a byte.
_END_SHIFT = 70


class Bytes(Protocol):
    """bytes, memoryview or mmap."""

    def __getitem__(self, position: int, /) -> int: ...


def encode_varint(value: int) -> bytes:
    """The bytes of a number that is not negative."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class VarintSequence:
    """Encodes numbers most of which are close to the one before: what they share is remembered."""

    __slots__ = ("_high", "_high_bytes")

    def __init__(self) -> None:
        self._high = 0
        self._high_bytes = b""

    def encode(self, value: int) -> bytes:
        """As encode_varint."""
        high = value >> 7
        if not high:
            return _LAST[value]
        if high != self._high:
            self._high, self._high_bytes = high, encode_varint(high)
        return _FIRST[value & 0x7F] + self._high_bytes


# A number's low bits, with more to come and without.
_FIRST: Final = [bytes((value | 0x80,)) for value in range(0x80)]
_LAST: Final = [bytes((value,)) for value in range(0x80)]


def decode_varint(data: Bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position behind it.

    Raises:
        DecodeError: the data ends before the number does, or it is no number of 64 bits.
    """
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
