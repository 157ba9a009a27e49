"""The header decoder against the hpack library's."""

import re
from typing import Any

import hpack
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nereid.rpc.http2.frames import Code, Http2ConnectionError
from nereid.rpc.http2.header_decoder import HeaderDecoder

NAMES = st.sampled_from(
    [b":path", b":method", b"te", b"content-type", b"grpc-timeout", b"x", b"traceparent", b"y" * 90]
)
VALUES = st.one_of(
    st.sampled_from([b"POST", b"trailers", b"application/grpc", b"", b"\xff\x00"]),
    st.binary(max_size=200),
)
THREE_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
LISTS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=12)


@given(
    st.lists(
        st.tuples(LISTS, st.booleans(), st.sampled_from([None, 0, 100, 300, 4096])),
        min_size=1,
        max_size=6,
    )
)
def test_it_agrees_with_the_library(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    encoder, oracle, decoder = hpack.Encoder(), hpack.Decoder(), HeaderDecoder(1 << 16)
    for fields, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(fields, huffman=huffman)
        decoded = decoder.decode(block)
        assert decoded.fields == [tuple(pair) for pair in oracle.decode(block, raw=True)]
        assert decoded.fields == [(name, value) for name, value, _ in fields]
        assert not decoded.oversized


@given(st.binary(max_size=80))
def test_random_bytes_decode_as_with_the_library(block: bytes) -> None:
    oracle, decoder = hpack.Decoder(), HeaderDecoder(1 << 16)
    try:
        expected = [tuple(pair) for pair in oracle.decode(block, raw=True)]
    except (hpack.HPACKError, ValueError):
        with pytest.raises(Http2ConnectionError) as caught:
            decoder.decode(block)
        assert caught.value.code == Code.COMPRESSION_ERROR
    else:
        # The library takes any number of table size updates.
        assume(not THREE_UPDATES.match(block))
        assert decoder.decode(block).fields == expected


def test_fresh_fields_and_the_generation() -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder(1 << 16)
    fields: Any = [(":method", "POST"), ("te", "trailers"), ("secret", "1", True)]
    first = decoder.decode(encoder.encode(fields))
    assert first.fresh == [1, 2]
    assert decoder.generation == 1
    second = decoder.decode(encoder.encode(fields))
    assert second.fresh == [2]
    assert decoder.generation == 1
    encoder.header_table_size = 0
    assert decoder.decode(encoder.encode([(":method", "POST")])).fresh == []
    assert decoder.generation > 1


def test_a_list_too_long_keeps_the_table_right() -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder(200)
    fields = [("a", "x" * 100), ("b", "y" * 100), ("c", "z" * 100)]
    decoded = decoder.decode(encoder.encode(fields))
    assert decoded.oversized
    assert len(decoded.fields) == 1
    assert decoder.decode(encoder.encode([("c", "z" * 100)])).fields == [(b"c", b"z" * 100)]


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\xff\xff\xff\xff\xff\xff",
        b"\xff",
        b"\x00\x05abc",
        b"\x00\x01a\x05b",
        b"\x7f\xff\x01",
        b"\x00",
        b"\x3f\xe2\x1f",
        b"\x83\x20",
        b"\x20\x20\x20\x83",
        b"\x00\x81\xff\x00",
    ],
)
def test_damaged_blocks(block: bytes) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        HeaderDecoder(1 << 16).decode(block)
    assert caught.value.code == Code.COMPRESSION_ERROR


def test_a_large_index() -> None:
    """Index 127 and more take several bytes."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder(1 << 16)
    many = [(f"n{number}", "") for number in range(90)]
    decoder.decode(encoder.encode(many))
    block = encoder.encode(many[:1])
    assert len(block) == 2
    assert decoder.decode(block).fields == [(b"n0", b"")]
