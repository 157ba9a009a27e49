"""Numbers of protobuf's wire format, checked against protobuf itself."""

from __future__ import annotations

import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from google.protobuf.message import DecodeError

from nereid.core.wire.varint import VarintSequence, decode_varint, encode_varint

NUMBERS = [0, 1, 127, 128, 300, 16383, 16384, (1 << 32) - 1, 1 << 63, (1 << 64) - 1]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_written_as_protobuf_does(number: int) -> None:
    encoded = encode_varint(number)
    assert encoded == _VarintBytes(number)
    for data in (encoded, memoryview(b"xx" + encoded + b"\xff")[2:]):
        assert decode_varint(data, 0) == (number, len(encoded))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10 + b"\x01"])
def test_damaged_numbers_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_varint(data, 0)


def test_a_sequence_writes_the_same_numbers() -> None:
    sequence = VarintSequence()
    numbers = [*NUMBERS, *range(16380, 16390), *range((1 << 60) - 3, (1 << 60) + 3)]
    assert [*map(sequence.encode, numbers)] == [*map(encode_varint, numbers)]


def test_a_sequence_reads_the_same_numbers() -> None:
    sequence = VarintSequence()
    numbers = [*NUMBERS, *range(16380, 16390), *range((1 << 60) - 3, (1 << 60) + 3), 5, 1 << 40]
    for number in numbers:
        encoded = encode_varint(number)
        assert sequence.decode(b"x" + encoded + b"\x80", 1) == (number, 1 + len(encoded))
    with pytest.raises(DecodeError):
        sequence.decode(encode_varint(1 << 60)[:-1], 0)
