"""Choosing an encoding, compressing, and decompressing within bounds."""

from __future__ import annotations

import gzip
import zlib

import pytest

from nereid.rpc.grpc.compression import (
    LEVELS,
    begin_inflation,
    compress,
    inflate,
    inflated_message,
    reply_encoding,
)
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.net.inflation import InflationLimits


def decompress(encoding: str, data: bytes, max_bytes: int) -> bytes:
    inflation = begin_inflation(encoding, data, InflationLimits(max_bytes=max_bytes))
    while not inflation.done:
        inflate(inflation, 100)
    return inflated_message(inflation)


@pytest.mark.parametrize(
    ("accepted", "low", "high"),
    [
        (b"identity,deflate,gzip", "gzip", "deflate"),
        (b" gzip , deflate", "gzip", "deflate"),
        (b"gzip", "gzip", "gzip"),
        (b"deflate", "deflate", "deflate"),
        (b"identity", None, None),
        (b"br,zstd", None, None),
        (b"", None, None),
    ],
)
def test_the_encoding_of_a_reply(accepted: bytes, low: str | None, high: str | None) -> None:
    chosen = [reply_encoding(level, accepted) for level in LEVELS]
    assert chosen == [None, low, high, high]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression_round_trip(encoding: str) -> None:
    message = b"nereid" * 1000
    small = compress(encoding, (message[:1000], memoryview(message)[1000:], b""))
    assert len(small) < 100
    assert decompress(encoding, small, 6000) == message
    with pytest.raises(RpcError, match="larger than 5999"):
        decompress(encoding, small, 5999)


def test_decompression() -> None:
    body = b"squeeze" * 100
    assert decompress("gzip", gzip.compress(body), 700) == body
    assert decompress("deflate", zlib.compress(body), 700) == body


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("gzip", gzip.compress(bytes(701), mtime=0), Status.RESOURCE_EXHAUSTED),
        ("gzip", gzip.compress(bytes(10), mtime=0)[:-1], Status.INTERNAL),
        ("gzip", gzip.compress(bytes(10), mtime=0) + b"more", Status.INTERNAL),
        ("gzip", b"rubbish", Status.INTERNAL),
        ("deflate", gzip.compress(bytes(10), mtime=0), Status.INTERNAL),
        ("identity", b"", Status.INTERNAL),
    ],
)
def test_what_cannot_be_decompressed(encoding: str, data: bytes, status: Status) -> None:
    with pytest.raises(RpcError) as caught:
        decompress(encoding, data, 700)
    assert caught.value.status == status
