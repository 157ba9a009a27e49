"""HTTP/2 frames: no input ends in an exception, what is sent is well formed and does not depend
on how the bytes are cut, and nothing is left behind.
"""

from __future__ import annotations

import struct

import hpack

from nereid.rpc.http2.frames import PREFACE
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.connection_harness import ServerHarness
from tests.support.rpc.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITISED,
    PRIORITY,
    REQUEST,
    RST,
    SETTINGS,
    Fields,
    Frame,
    frame,
    message,
    settings,
    to,
    window,
)

MAX_BYTES = 2048
_LIMITS = Limits(
    max_message_bytes=400,
    max_concurrent_streams=5,
    stream_window_bytes=300,
    connection_window_bytes=70_000,
    max_header_list_bytes=600,
    max_unsent_bytes=20,
)


def _headers(stream: int, fields: Fields, flags: int = END_HEADERS) -> bytes:
    """Good on any connection: no block builds on what another one left in a table."""
    return frame(HEADERS, flags, stream, hpack.Encoder().encode(fields))


def _call(stream: int, path: str = "/test/Echo", body: bytes = b"hi") -> bytes:
    return _headers(stream, to(path)) + frame(DATA, END_STREAM, stream, message(body))


_BLOCK = hpack.Encoder().encode(REQUEST)
_FRAMES = [
    _call(1) + _call(3, "/test/Hold") + _call(5, "/test/Fail"),
    _call(1, "/test/Chat") + window(0, 5) + window(1, 5) + frame(RST, 0, 1, bytes(4)),
    frame(HEADERS, END_HEADERS, 1, _BLOCK)
    + frame(DATA, PADDED, 1, b"\x02" + message(b"x") + b"\0\0"),
    frame(HEADERS, END_HEADERS | PRIORITISED, 1, b"\0\0\0\0\x01" + _BLOCK)
    + frame(DATA, END_STREAM, 1, message(b"abc")),
    frame(HEADERS, 0, 1, _BLOCK[:9]) + frame(CONTINUATION, END_HEADERS, 1, _BLOCK[9:]),
    settings(window=0)
    + _call(1, body=bytes(25))
    + _headers(3, to("/test/Raw"))
    + frame(DATA, 0, 3, message(b"abc"))
    + window(1, 20)
    + frame(DATA, 0, 3, message(b"abc")),
    settings(table=0, window=3, frame=16_384, list=9) + frame(SETTINGS, ACK) + _call(1),
    frame(PING, 0, 0, bytes(8)) + frame(PRIORITY, 0, 3, bytes(5)) + frame(GOAWAY, 0, 0, bytes(8)),
    _headers(1, to("/test/Raw", ("grpc-timeout", "1S"), ("grpc-encoding", "gzip")))
    + frame(DATA, 0, 1, message(b"abc") + b"\0\0")
    + frame(DATA, END_STREAM, 1, b"\0\0\x01x")
    + _headers(1, [("late", "1")], END_HEADERS | END_STREAM),
]


def _shortened(frames: bytes) -> bytes:
    """Frames as _lengthened reads them."""
    short = b""
    while frames:
        size = int.from_bytes(frames[:3])
        short += bytes((frames[3], frames[4], frames[8], size)) + frames[9 : 9 + size]
        frames = frames[9 + size :]
    return short


def _lengthened(short: bytes) -> bytes:
    """Frames from four bytes each for kind, flags, stream and size, so that sizes are right."""
    frames = b""
    while len(short) >= 4:
        kind, flags, stream, size = short[:4]
        frames += frame(kind, flags, stream, short[4 : 4 + size])
        short = short[4 + size :]
    return frames


# The first byte: below 128, the frames are shortened; the rest of it says how they are cut.
SEEDS = [bytes((number * 7,)) + _shortened(each) for number, each in enumerate(_FRAMES)]
SEEDS += [bytes((number * 5 + 128,)) + each for number, each in enumerate(_FRAMES)]
WORDS = [_BLOCK, b"\x83", b"\x86", struct.pack(">I", 1 << 31), b"\x7f\xff\xff\xff", message(b"x")]


def _drive(pieces: list[bytes], used: int) -> list[Frame]:
    """used: so much of the connection's window that is not given back yet."""
    server = ServerHarness(_LIMITS)
    server.http2.receiver.unacknowledged_bytes = used
    for piece in pieces:
        server.feed(piece)
    frames = server.sent_frames()
    for call in server.calls[:1]:
        # An owner that replies after whatever became of the call.
        call.reply(b"late") if call.path == "/test/Hold" else call.finish()
    connection = server.connection
    for now in (1, 2):
        server.http2.on_timer(now)
        connection.end_unread_responses(now)
        connection.end_incomplete_requests(now)
    frames += server.sent_frames()
    assert len(connection.streams) <= _LIMITS.max_concurrent_streams
    assert sum(len(each.payload) for each in frames) < 1 << 20
    connection.connection_lost()
    assert not connection.streams
    assert not server.deadlines.expire(1e12)
    assert all(call.done for call in server.calls)
    return frames


def run(data: bytes) -> None:
    if not data:
        return
    frames = data[1:] if data[0] & 0x80 else _lengthened(data[1:])
    step = data[0] % 97 + 1
    # Up to a few bytes below what makes the connection give it back.
    used = _LIMITS.connection_window_bytes // 2 - step
    whole = _drive([frames], used)
    pieces = [frames[at : at + step] for at in range(0, len(frames), step)]
    assert _drive(pieces, used) == whole
    greeting = ServerHarness(_LIMITS, greet=False)
    greeting.feed(PREFACE[: step % 25], data)
    greeting.connection.connection_lost()
