"""gRPC's text forms."""

from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.rpc.grpc.metadata import (
    decode_binary,
    decode_message,
    decode_pairs,
    encode_message,
    encode_metadata,
    encode_status,
    encode_trailer,
    format_timeout,
    literal,
    literal_at,
    parse_timeout_s,
)
from nereid.rpc.grpc.status import RpcError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"99999999S", 99_999_999),
        (b"250m", 0.25),
        (b"5u", 5e-6),
        (b"7n", 7e-9),
        (b"0n", 0),
    ],
)
def test_timeouts(text: bytes, seconds: float) -> None:
    assert parse_timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"S", b"1", b"123456789S", b"-1S", b"1.5S", b"1s", b"1S\n"])
def test_what_is_no_timeout(text: bytes) -> None:
    assert parse_timeout_s(text) is None


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_timeout_survives_the_wire(seconds: float) -> None:
    back = parse_timeout_s(format_timeout(seconds))
    assert back is not None
    # Eight digits, but whole hours at the far end.
    assert back <= seconds * 1.0000001 or back == 1e-9
    assert back >= seconds * 0.99 - 1e-9


def test_endless_timeouts_are_cut() -> None:
    assert format_timeout(1e15) == b"99999999H"
    assert format_timeout(-5) == b"1n"


@given(st.text())
def test_a_message_survives_the_wire(message: str) -> None:
    text = encode_message(message)
    assert all(0x20 <= byte < 0x7F for byte in text)
    if len(text) < 6000:
        assert decode_message(text) == message.encode("utf-8", "replace").decode()


def test_messages() -> None:
    assert encode_message("100 % ü\n") == b"100 %25 %C3%BC%0A"
    assert decode_message(b"50%, %zz %C3%BC %") == "50%, %zz ü %"
    assert decode_message(b"%ff") == "�"
    for length in (1, 2, 3):
        long = encode_message("x" * length + "ü" * 9000)
        assert len(long) <= 6000
        assert long.endswith((b"%C3", b"%BC"))


def test_binary_values() -> None:
    assert decode_binary(b"AP8") == [b"\x00\xff"]
    assert decode_binary(b"AP8=") == [b"\x00\xff"]
    assert decode_binary(b"AP8=,AQ, ,Ag==") == [b"\x00\xff", b"\x01", b"", b"\x02"]
    assert decode_binary(b"") == [b""]
    for bad in (b"A", b"!!!!", b"AP-_"):
        with pytest.raises(RpcError):
            decode_binary(bad)


def test_pairs() -> None:
    assert decode_pairs(b"a", b"\xff") == [("a", "\xff")]
    assert decode_pairs(b"a-bin", b"AA,AQ") == [("a-bin", b"\x00"), ("a-bin", b"\x01")]


def test_metadata_is_what_hpack_reads() -> None:
    long = "x" * 70_000
    block = encode_metadata(
        [("a", "b"), ("raw-bin", b"\x00\xff"), ("as-text-bin", "t"), ("l", long), ("e", b"")]
    )
    fields: list[Any] = [tuple(pair) for pair in hpack.Decoder(1 << 20).decode(block)]
    assert fields == [
        ("a", "b"),
        ("raw-bin", "AP8"),
        ("as-text-bin", "dA"),
        ("l", long),
        ("e", ""),
    ]


@pytest.mark.parametrize(
    "pair", [("A", "x"), ("", "x"), ("a b", "x"), ("a", "ü"), ("a", " x"), ("a", "x\n"), (":p", "")]
)
def test_what_cannot_be_metadata(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        encode_metadata([pair])


@given(st.binary(min_size=1, max_size=300), st.binary(max_size=300))
def test_literals_are_what_hpack_reads(name: bytes, value: bytes) -> None:
    block = literal(name, value) + literal_at(31, value)
    fields = [tuple(pair) for pair in hpack.Decoder().decode(block, raw=True)]
    assert fields == [(name, value), (b"content-type", value)]


@pytest.mark.parametrize("message", ["", "full", "100 %\n", "x" * 201, "ä" * 5000])
def test_a_status_is_the_same_whether_or_not_it_is_remembered(message: str) -> None:
    expected = literal(b"grpc-status", b"14")
    if message:
        expected += literal(b"grpc-message", encode_message(message))
    assert [encode_status(14, message) for _ in range(2)] == [expected] * 2


def test_a_trailer_is_encoded_as_metadata_is() -> None:
    for pair in (("grpc-retry-pushback-ms", "960"), ("details-bin", b"\x00\xff")):
        assert [encode_trailer(*pair) for _ in range(2)] == [encode_metadata((pair,))] * 2
    for _ in range(2):
        with pytest.raises(ValueError, match="printable"):
            encode_trailer("reason", "a\nb")
