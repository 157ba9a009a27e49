"""Choosing, doing and undoing compression."""

from __future__ import annotations

import os

import pytest

from nereid.rpc.grpc.compression import LEVELS, compress, decompress, reply_encoding
from nereid.rpc.grpc.status import RpcError


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
def test_there_and_back(encoding: str) -> None:
    message = b"nereid" * 1000
    small = compress(encoding, message)
    assert small is not None
    assert len(small) < 100
    assert decompress(encoding, small, 6000) == message
    with pytest.raises(RpcError, match="larger than 5999"):
        decompress(encoding, small, 5999)


@pytest.mark.parametrize("message", [b"", b"x", os.urandom(1000)], ids=len)
def test_what_does_not_shrink_is_left_alone(message: bytes) -> None:
    assert compress("gzip", message) is None
