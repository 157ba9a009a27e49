"""Compression: damaged streams, limits, and the choice of an encoding."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument, NereidError, Unavailable, Unimplemented
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid.rpc.net.zlib_queue import ZlibQueue
from nereid_gateway.server.content_coding import ContentCoder, choose_encoding, compress

BODY = b'{"inputs":[' + b"1," * 50000 + b"1]}"


def decompress(body: bytes, encoding: bytes, limit: int, budget: int = 1 << 40) -> bytes:
    """In a loop of its own. budget: how many bytes may be held before the next are refused."""
    held = 0

    def hold(size_bytes: int) -> None:
        nonlocal held
        held += size_bytes
        if held > budget:
            raise OverBudgetError("too many bytes", shared=False)

    async def run() -> bytes:
        queue = ZlibQueue()
        try:
            return await ContentCoder(limit, 1000, queue).decompress(body, encoding, "", hold)
        finally:
            queue.close()

    return asyncio.run(run())


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"identity"])
def test_there_and_back(encoding: bytes) -> None:
    packed = BODY if encoding == b"identity" else compress((BODY[:10], BODY[10:]), encoding)
    assert decompress(packed, encoding, len(BODY)) == BODY


def test_damage_yields_what_could_be_read() -> None:
    assert decompress(BODY, b"gzip", 1 << 20) == b""
    assert decompress(zlib.compress(BODY)[2:-4], b"deflate", 1 << 20) == b""
    cut = decompress(gzip.compress(BODY)[:-20], b"gzip", 1 << 20)
    assert cut
    assert BODY.startswith(cut)
    for behind in (b"behind", zlib.compress(BODY), bytes(100_000)):
        assert decompress(gzip.compress(BODY) + behind, b"gzip", 1 << 20) == BODY
        assert decompress(zlib.compress(BODY) + behind, b"deflate", 1 << 20) == BODY
    assert decompress(zlib.compress(BODY)[:-4] + b"none", b"deflate", 1 << 20) == BODY
    assert decompress(zlib.compress(BODY), b"gzip", 1 << 20) == BODY


def test_what_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nothing to be decompressed"):
        decompress(b"", b"gzip", 10)
    for encoding in (b"br", b"GZIP", b"gzip, deflate", b""):
        with pytest.raises(Unimplemented, match="Unsupported compression type"):
            decompress(b"x", encoding, 10)


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(InvalidArgument, match=r"^Decompressed data size exceeds"):
        decompress(bomb, b"deflate", 1000)


def test_a_bomb_is_stopped_where_its_client_may_not_hold_more() -> None:
    with pytest.raises(Unavailable, match="too many bytes"):
        decompress(zlib.compress(bytes(50_000_000)), b"deflate", 1 << 30, budget=1 << 22)


@pytest.mark.parametrize(
    ("accept", "choice"),
    [
        (b"gzip, deflate", b"gzip"),
        (b"gzip;q=0.5, deflate", b"deflate"),
        (b"gzip;q=0.5, identity", None),
        (b"br;q=1, gzip;q=0.2", b"gzip"),
        (b"gzip; q=1.0.0, deflate", b"deflate"),
        (b"gzip;q=0", None),
        (b"GZIP", None),
        (b"gzip;q=x", None),
        (b"gzip;q=1e9999", None),
        (b"gzip;q=" + b"9" * 400 + b", deflate;q=0.1", b"deflate"),
    ],
)
def test_choose_encoding(accept: bytes, choice: bytes | None) -> None:
    assert choose_encoding(accept) == choice


@given(st.binary(max_size=300), st.sampled_from([b"gzip", b"deflate"]))
def test_any_bytes_are_read_or_refused(body: bytes, encoding: bytes) -> None:
    with contextlib.suppress(NereidError):
        assert len(decompress(body, encoding, 100)) <= 100
