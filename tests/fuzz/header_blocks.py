"""Header blocks, one after the other on one table: read as the hpack library does, or refused."""

from __future__ import annotations

import re
from typing import Any

import hpack

from nereid.bounded_cache import BoundedCache
from nereid.rpc.grpc.handlers import Route
from nereid.rpc.grpc.request_headers import RequestHeaders, RequestHeadersReader, parse_headers
from nereid.rpc.http2.frames import Code, Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.header_decoder import HeaderDecoder
from tests.support.rpc.http2_frames import REQUEST, to

MAX_BYTES = 1024
_MAX_LIST_BYTES = 1 << 16
_ROUTES = {"/test/Echo": Route(unary=lambda call, message: None)}
_THREE_RESIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}", re.DOTALL)


def _blocks(*lists: list[Any], huffman: bool = True) -> bytes:
    encoder = hpack.Encoder()
    data = b""
    for fields in lists:
        block = encoder.encode(fields, huffman=huffman)
        data += bytes((len(block),)) + block
    return data


# Each block has its length before it, in a byte.
SEEDS = [
    _blocks(REQUEST, REQUEST, to("/other", ("grpc-timeout", "1S"))),
    _blocks(REQUEST, [*REQUEST, ("x-bin", "AAE=")], huffman=False),
    _blocks([(f"name-{number}", "v" * number) for number in range(20)][:10], REQUEST),
    # The third says that a field is never indexed.
    _blocks([*REQUEST, ("a", "1")], [*REQUEST, ("a", "2", True), ("a", "1")]),
    b"\x01\x20" + _blocks(REQUEST) + b"\x03\x3f\xe1\x1f" + _blocks(REQUEST),
]
WORDS = [b"\x20", b"\x3f\xe1\x1f", b"\x82", b"\x7f\x80\x01", b"\xbe", b"\x10\x84", b"\xff\xff\x01"]


def _name(pair: tuple[str, str | bytes]) -> str:
    return pair[0]


def run(data: bytes) -> None:
    oracle = hpack.Decoder(_MAX_LIST_BYTES)
    decoder = HeaderDecoder(_MAX_LIST_BYTES)
    reader = RequestHeadersReader(HeaderDecoder(_MAX_LIST_BYTES), _ROUTES, BoundedCache(64))
    while data:
        block, data = data[1 : 1 + data[0]], data[1 + data[0] :]
        headers: RequestHeaders | None = None
        try:
            headers = reader.read(block)
        except Http2StreamError:
            pass
        except Http2ConnectionError as error_status:
            assert error_status.code == Code.COMPRESSION_ERROR
        try:
            # The library reads indices and lengths without bounds.
            expected = [tuple(pair) for pair in oracle.decode(block, raw=True)]
        except (hpack.HPACKError, ValueError, IndexError):
            expected = None
        try:
            decoded = decoder.decode(block)
        except Http2ConnectionError as error_status:
            assert error_status.code == Code.COMPRESSION_ERROR
            # The library reads any number of table size updates.
            assert expected is None or _THREE_RESIZES.match(block)
            return
        assert decoded.fields == expected
        if headers is not None and headers.refusal is None:
            # However much of it was known before. The order of different names means nothing.
            whole = parse_headers(tuple(decoded.fields))
            assert whole.refusal is None
            assert headers.path == whole.path
            assert headers.timeout_s == whole.timeout_s
            assert sorted(headers.metadata, key=_name) == sorted(whole.metadata, key=_name)
