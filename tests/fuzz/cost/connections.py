"""Connections of both protocols: HTTP/1.1, HTTP/2 frames, header blocks, gRPC messages."""

from __future__ import annotations

import asyncio
import struct
import zlib
from contextlib import suppress
from typing import Any

import hpack

from nereid.bounded_cache import BoundedCache
from nereid.core.wire.messages import InferRequest
from nereid.rpc.grpc.compression import begin_inflation, inflate, inflated_message
from nereid.rpc.grpc.request_headers import RequestHeadersReader
from nereid.rpc.grpc.status import RpcError
from nereid.rpc.http2.frames import Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.header_decoder import HeaderDecoder
from nereid.rpc.http2.limits import Limits
from nereid.rpc.net.inflation import InflatedTooLargeError, Inflation, InflationLimits
from nereid_gateway.server.connection import HttpConnection
from nereid_gateway.server.header_forwarding import HeaderForwarding
from nereid_gateway.server.limits import HttpLimits
from tests.fuzz import http1
from tests.fuzz.cost.growing import Growing, Target
from tests.support.gateway.http_site import ConnectionLog
from tests.support.rpc.connection_harness import ServerHarness
from tests.support.rpc.http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    REQUEST,
    RST,
    SETTINGS,
    frame,
    message,
    settings,
    to,
    window,
)

# What a loop reads at once.
_READ_BYTES = 1 << 18
_HTTP_LIMITS = HttpLimits(max_body_bytes=1 << 26, linger_s=0)
_LIMITS = Limits(
    max_message_bytes=1 << 26, stream_window_bytes=1 << 26, connection_window_bytes=1 << 28
)


def _reads(data: bytes) -> list[bytes]:
    return [data[at : at + _READ_BYTES] for at in range(0, len(data), _READ_BYTES)]


# --- HTTP/1.1


class _Wire(http1._Wire):
    """Counts what is written, as appending it would cost more than what is measured."""

    def write(self, data: Any) -> None:
        self.written_bytes = getattr(self, "written_bytes", 0) + len(data)


async def _serve_http1(data: bytes) -> None:
    connection = HttpConnection(
        lambda call: call.respond(200, (b"",)), _HTTP_LIMITS, ConnectionLog()
    )
    wire = _Wire()
    connection.connection_made(wire)
    for piece in _reads(data):
        if wire.closed:
            break
        connection.data_received(piece)
    connection.connection_lost(None)


def _http1(data: bytes) -> None:
    asyncio.run(_serve_http1(data))


_POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
HTTP1 = Target(
    "http/1.1",
    _http1,
    (
        Growing("requests", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        Growing(
            "requests that differ", lambda number: b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number
        ),
        Growing(
            "upgrades", _POST + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nx"
        ),
        Growing("a target", b"/", b"GET /"),
        Growing("headers", b"a:b\r\n", b"GET / HTTP/1.1\r\n"),
        Growing(
            "headers of different names",
            lambda number: b"a%d:b\r\n" % number,
            b"GET / HTTP/1.1\r\n",
        ),
        Growing("a header", b"a", b"GET / HTTP/1.1\r\na: "),
        Growing("folded lines", b" a\r\n", b"GET / HTTP/1.1\r\na: b\r\n"),
        Growing("a body", b"x", _POST + b"Content-Length: 60000000\r\n\r\n"),
        Growing("chunks of a byte", b"1\r\nx\r\n", _CHUNKED),
        Growing("chunks of 64 bytes", b"40\r\n" + b"x" * 64 + b"\r\n", _CHUNKED),
        Growing("chunk extensions", b";a=b", _CHUNKED + b"1"),
        Growing("zeros of a chunk's size", b"0", _CHUNKED),
        Growing("trailers", b"a: b\r\n", _CHUNKED + b"0\r\n"),
        Growing("empty lines", b"\r\n"),
    ),
    words=tuple(http1.WORDS),
    steps_per_byte=20,
    memory_per_byte=100,
)

# --- HTTP/2


def _headers(stream: int, path: str = "/test/Echo", flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, hpack.Encoder().encode(to(path)))


_BLOCK = hpack.Encoder().encode(REQUEST)
_OPEN = b"".join(_headers(2 * number + 1, "/test/Hold") for number in range(500))


def _http2(data: bytes) -> None:
    server = ServerHarness(_LIMITS)
    for piece in _reads(data):
        server.feed(piece)
        while server.http2.data_to_send():
            pass
    server.connection.connection_lost()


def _two_windows(number: int) -> bytes:
    return struct.pack(">HI", 4, 60_000 + number % 2)


HTTP2 = Target(
    "http/2",
    _http2,
    (
        Growing(
            "windows in SETTINGS, many streams",
            frame(SETTINGS, payload=b"".join(map(_two_windows, range(2730)))),
            _OPEN,
        ),
        Growing(
            "small SETTINGS, many streams", settings(window=60_000) + settings(window=60_001), _OPEN
        ),
        Growing("empty SETTINGS", frame(SETTINGS)),
        Growing("windows of the connection", window(0, 1)),
        Growing("windows of streams", lambda number: window(2 * (number % 500) + 1, 1), _OPEN),
        Growing(
            "windows of a closed stream", window(1, 1), _headers(1, "/x", END_HEADERS | END_STREAM)
        ),
        Growing(
            "data, a byte each",
            frame(DATA, 0, 1, b"x"),
            _headers(1) + frame(DATA, 0, 1, b"\0\3\0\0\0"),
        ),
        Growing("empty data", frame(DATA, 0, 1), _headers(1)),
        Growing("padding", frame(DATA, PADDED, 1, b"\xff" + bytes(255)), _headers(1)),
        Growing(
            "empty messages", frame(DATA, 0, 1, message(b"") * 3000), _headers(1, "/test/Chat")
        ),
        Growing("heads of messages", frame(DATA, 0, 1, b"\0"), _headers(1, "/test/Raw")),
        Growing(
            "calls",
            lambda number: (
                _headers(2 * number + 1) + frame(DATA, END_STREAM, 2 * number + 1, message(b"x"))
            ),
        ),
        Growing(
            "calls of unknown methods",
            lambda number: _headers(2 * number + 1, "/no", END_HEADERS | END_STREAM),
        ),
        Growing(
            "calls and resets",
            lambda number: _headers(2 * number + 1) + frame(RST, 0, 2 * number + 1, bytes(4)),
        ),
        Growing("pings", frame(PING, payload=bytes(8))),
        Growing("priorities", frame(PRIORITY, 0, 3, bytes(5))),
        Growing("unknown frames", frame(99, 0, 1)),
        Growing(
            "continuations", frame(CONTINUATION, 0, 1, b"\x82" * 100), frame(HEADERS, 0, 1, _BLOCK)
        ),
        Growing("empty continuations", frame(CONTINUATION, 0, 1), frame(HEADERS, 0, 1, _BLOCK)),
        Growing(
            "table sizes",
            lambda number: frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                2 * number + 1,
                b"\x20\x3f\xe1\x1f" * 4000 + _BLOCK,
            ),
        ),
        Growing(
            "fields by index",
            lambda number: frame(
                HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, _BLOCK + b"\x82" * 15_000
            ),
        ),
        Growing(
            "fields that are new",
            lambda number: frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                2 * number + 1,
                _BLOCK + b"".join(b"\x40\2%03d\1v" % index for index in range(1000))[:8000],
            ),
        ),
    ),
    words=(
        _BLOCK,
        frame(PING, payload=bytes(8)),
        frame(DATA, 0, 1, b"x"),
        window(0, 1),
        window(1, 1),
        settings(window=1),
        settings(table=0),
        frame(RST, 0, 1, bytes(4)),
        _headers(1),
        _headers(3),
    ),
    steps_per_byte=40,
    memory_per_byte=150,
)


# --- header blocks


def _block(data: bytes) -> None:
    """One block after another, each as large as a client's may be."""
    reader = RequestHeadersReader(
        HeaderDecoder(_LIMITS.max_header_list_bytes), {}, BoundedCache(64)
    )
    for at in range(0, len(data), _LIMITS.max_header_list_bytes):
        try:
            reader.read(data[at : at + _LIMITS.max_header_list_bytes])
        except Http2StreamError:
            continue
        except Http2ConnectionError:
            return


HEADER_BLOCKS = Target(
    "header blocks",
    _block,
    (
        Growing("indexed fields", b"\x82"),
        Growing("literal fields", b"\0\1a\1b"),
        Growing("fields for the table", b"\x40\1a\1b"),
        Growing("Huffman codes", b"\0\1a\x7f\x9d\0" + b"\xff" * 284),
        Growing("table sizes", b"\x20"),
        Growing("two table sizes", b"\x20\x3f\xe1\x1f"),
        Growing("a long integer", b"\x80", b"\x7f"),
        Growing("whole blocks", _BLOCK.ljust(16_384, b"\x83")),
        Growing("references to a large field", b"\xbe", b"\x40\1a\x7f\xb9\x17" + b"v" * 3000),
    ),
    words=(b"\x82", b"\x20", b"\x40\1a\1b", b"\x7f\x80", b"\xff\xff", b"\x3f\xe1\x1f", b"\xbe"),
    steps_per_byte=80,
)


# --- compression and forwarding


_INFLATION = InflationLimits(max_bytes=1 << 26)


def _inflate_message(data: bytes) -> None:
    inflation = begin_inflation("gzip", data, _INFLATION)
    with suppress(RpcError):
        while not inflation.done:
            inflate(inflation, 1 << 20)
        inflated_message(inflation)


def _inflate_body(data: bytes) -> None:
    """As the thread does, for either format."""
    inflation = Inflation(data, 47, _INFLATION)
    with suppress(zlib.error, InflatedTooLargeError):
        while not inflation.done:
            inflation.inflate()
    inflation.content()


def _gzip_zeros(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(bytes(size)) + packer.flush()


_MEMBER = _gzip_zeros(0)
_COMPRESSED = (
    Growing("empty blocks", b"\0\0\0\xff\xff", _MEMBER[:10]),
    Growing("members", _MEMBER),
    Growing("zeros", b"\0", _MEMBER[:10]),
    Growing("a long match", b"\xff", _MEMBER[:10]),
)
GZIP_MESSAGE = Target(
    "compressed message", _inflate_message, _COMPRESSED, words=(b"\0\0\0\xff\xff", _MEMBER)
)
GZIP_BODY = Target(
    "compressed body", _inflate_body, _COMPRESSED, words=(b"\0\0\0\xff\xff", _MEMBER)
)


def _forward(data: bytes) -> None:
    """Lines as names of headers."""
    forwarding = HeaderForwarding("(x*)*y|(a|aa)+$|.*.*.*=.*")
    request = InferRequest(0, b"", [])
    forwarding.forward_headers(request, [(name, b"v") for name in data.split(b"\n")])


FORWARDING = Target(
    "forwarded headers",
    _forward,
    (
        Growing("many names", lambda number: b"x%d\n" % number),
        Growing("a name that nearly matches", b"x"),
        Growing("a name of many alternatives", b"a", b"", b"!"),
        Growing("names that nearly match", b"x" * 1000 + b"\n"),
        Growing("broken UTF-8", b"\xff"),
    ),
    words=(b"x", b"a", b"=", b"\n"),
    steps_per_byte=60,
    memory_per_byte=100,
)
