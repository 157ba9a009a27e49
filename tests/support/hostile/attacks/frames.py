"""HTTP/2 frames that cost their sender little and the server more."""

from __future__ import annotations

import struct

from tests.support.hostile.attack import ANY, Attack
from tests.support.hostile.raw_clients import FrameWriter
from tests.support.hostile.sending import SERVICE, grpc_frames
from tests.support.rpc.http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    RST,
    SETTINGS,
    frame,
    message,
    to,
    window,
)

_MIB = 1 << 20
_INFER, _STREAM = SERVICE + "ModelInfer", SERVICE + "ModelStreamInfer"


def _open_streams(writer: FrameWriter, count: int, path: str = _STREAM) -> bytes:
    return b"".join(writer.headers(2 * number + 1, path) for number in range(count))


def _window_settings(writer: FrameWriter, frames: int, streams: int) -> bytes:
    """SETTINGS frames of 2,730 initial windows each, with many streams open."""
    opened = _open_streams(writer, streams)
    entries = b"".join(struct.pack(">HI", 4, 60_000 + number % 2) for number in range(2730))
    return opened + frame(SETTINGS, payload=entries) * frames


def _table_settings(writer: FrameWriter) -> bytes:
    entries = b"".join(struct.pack(">HI", 1, number % 2 * 4096) for number in range(2730))
    return frame(SETTINGS, payload=entries) * 100


def _stream_windows(writer: FrameWriter) -> bytes:
    opened = _open_streams(writer, 100)
    return opened + b"".join(window(2 * (number % 100) + 1, 1) for number in range(400_000))


def _crumbs(writer: FrameWriter, crumb: bytes, count: int, path: str = _INFER) -> bytes:
    """A large message, begun, and then in frames of nearly nothing."""
    start = frame(DATA, 0, 1, struct.pack(">BI", 0, 60 * _MIB))
    return writer.headers(1, path) + start + crumb * count


def _crumb_messages(writer: FrameWriter) -> bytes:
    """Empty messages on a stream: a refusal each."""
    return writer.headers(1, _STREAM) + frame(DATA, 0, 1, message(b"") * 3000) * 60


def _rapid_resets(writer: FrameWriter, count: int, body: bytes = b"") -> bytes:
    parts = []
    for number in range(count):
        stream = 2 * number + 1
        parts.append(writer.headers(stream, _INFER))
        if body:
            parts.append(frame(DATA, END_STREAM, stream, message(body)))
        parts.append(frame(RST, 0, stream, struct.pack(">I", 8)))
    return b"".join(parts)


def _provoked_resets(writer: FrameWriter) -> bytes:
    """The server itself resets each stream: its window is exceeded by what it is granted."""
    parts = []
    for number in range(50_000):
        stream = 2 * number + 1
        parts += [writer.headers(stream, _INFER), window(stream, (1 << 31) - 1)]
    return b"".join(parts)


def _refused_calls(writer: FrameWriter, path: str) -> bytes:
    """Calls that the server answers at once with an error."""
    return b"".join(writer.headers(2 * number + 1, path, end=True) for number in range(50_000))


def _continuations(writer: FrameWriter, payload: bytes, count: int) -> bytes:
    block = writer.encoder.encode(to(_INFER))
    return frame(HEADERS, 0, 1, block) + frame(CONTINUATION, 0, 1, payload) * count


def _header_bombs(writer: FrameWriter) -> bytes:
    """A large header in the table, referred to thousands of times by a byte each."""
    block = writer.encoder.encode([*to(_INFER), ("x", "v" * 3000)])
    first = frame(HEADERS, END_HEADERS | END_STREAM, 1, block)
    bomb = writer.encoder.encode(to(_INFER)) + b"\xbe" * 15_000
    return first + b"".join(
        frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 3, bomb) for number in range(400)
    )


def _table_updates(writer: FrameWriter) -> bytes:
    """Header blocks that resize their table thousands of times."""
    block = b"\x20\x3f\xe1\x1f" * 4000 + writer.encoder.encode(to(_INFER))
    return b"".join(
        frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, block) for number in range(400)
    )


def _changing_headers(writer: FrameWriter) -> bytes:
    """Hundreds of fields that no table knows, in each of many calls."""
    blocks = []
    for number in range(1000):
        fields = [(f"x-{number}-{index}", "v") for index in range(100)]
        block = writer.encoder.encode([*to(_INFER), *fields], huffman=True)
        blocks.append(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, block))
    return b"".join(blocks)


def _many_calls(writer: FrameWriter) -> bytes:
    """Open as many streams as there can be, and send nothing on any."""
    return _open_streams(writer, 20_000, _INFER)


ATTACKS = (
    Attack(
        "SETTINGS of 2,730 windows, many streams",
        grpc_frames(lambda writer: _window_settings(writer, 20, 1000)),
        ANY,
    ),
    Attack(
        "SETTINGS of 2,730 windows, few a second",
        grpc_frames(lambda writer: _window_settings(writer, 5, 1000)),
        ANY,
        nightly=True,
    ),
    Attack("SETTINGS of table sizes", grpc_frames(_table_settings), nightly=True),
    Attack("empty SETTINGS", grpc_frames(lambda _: frame(SETTINGS) * 200_000), nightly=True),
    Attack("WINDOW_UPDATE flood", grpc_frames(lambda _: window(0, 1) * 400_000), nightly=True),
    Attack("WINDOW_UPDATE flood on streams", grpc_frames(_stream_windows)),
    Attack(
        "WINDOW_UPDATE flood on closed streams",
        grpc_frames(lambda writer: writer.headers(1, "/x", end=True) + window(1, 1) * 400_000),
        nightly=True,
    ),
    Attack(
        "one-byte DATA frames",
        grpc_frames(lambda writer: _crumbs(writer, frame(DATA, 0, 1, b"x"), 60_000)),
    ),
    Attack(
        "one-byte DATA frames on a stream",
        grpc_frames(lambda writer: _crumbs(writer, frame(DATA, 0, 1, b"x"), 60_000, _STREAM)),
        nightly=True,
    ),
    Attack(
        "empty DATA frames",
        grpc_frames(lambda writer: _crumbs(writer, frame(DATA, 0, 1), 400_000)),
        nightly=True,
    ),
    Attack(
        "DATA frames of padding",
        grpc_frames(
            lambda writer: _crumbs(writer, frame(DATA, PADDED, 1, b"\xff" + bytes(255)), 4000)
        ),
        ANY,
        nightly=True,
    ),
    Attack("empty messages on a stream", grpc_frames(_crumb_messages), ANY),
    Attack("PING flood", grpc_frames(lambda _: frame(PING, payload=bytes(8)) * 200_000)),
    Attack(
        "PRIORITY flood",
        grpc_frames(lambda _: frame(PRIORITY, 0, 3, struct.pack(">IB", 0, 1)) * 300_000),
        nightly=True,
    ),
    Attack("unknown frames", grpc_frames(lambda _: frame(0x42, 0, 1) * 400_000), nightly=True),
    Attack(
        "RST flood",
        grpc_frames(
            lambda writer: writer.headers(1, "/x", end=True) + frame(RST, 0, 1, bytes(4)) * 300_000
        ),
        nightly=True,
    ),
    Attack(
        "GOAWAY flood",
        grpc_frames(lambda _: frame(GOAWAY, payload=bytes(8)) * 200_000),
        nightly=True,
    ),
    Attack("rapid resets", grpc_frames(lambda writer: _rapid_resets(writer, 50_000))),
    Attack(
        "rapid resets of requests",
        grpc_frames(lambda writer: _rapid_resets(writer, 20_000, b"\x0a\x01x")),
        nightly=True,
    ),
    Attack("provoked resets", grpc_frames(_provoked_resets), nightly=True),
    Attack(
        "calls of unknown methods",
        grpc_frames(lambda writer: _refused_calls(writer, "/no/such")),
        ANY,
    ),
    Attack(
        "calls without a message",
        grpc_frames(lambda writer: _refused_calls(writer, _INFER)),
        ANY,
        nightly=True,
    ),
    Attack(
        "empty CONTINUATIONs",
        grpc_frames(lambda writer: _continuations(writer, b"", 200_000)),
        nightly=True,
    ),
    Attack(
        "CONTINUATIONs of 16 MB",
        grpc_frames(lambda writer: _continuations(writer, b"\x40\x01x\x01y" * 3000, 1000)),
    ),
    Attack("HPACK bombs", grpc_frames(_header_bombs), ANY),
    Attack("HPACK table updates", grpc_frames(_table_updates), ANY),
    Attack("headers that always change", grpc_frames(_changing_headers, limit_s=2), ANY),
    Attack("20,000 calls that bring nothing", grpc_frames(_many_calls), ANY, nightly=True),
)
