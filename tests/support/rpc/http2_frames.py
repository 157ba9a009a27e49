"""Building and reading frames for the tests of the pure connection."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK, PADDED, PRIORITISED = 0x1, 0x4, 0x1, 0x8, 0x20

Fields = list[tuple[str, str]]
REQUEST: Fields = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test/Echo"),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    names = {"table": 1, "push": 2, "streams": 3, "window": 4, "frame": 5, "list": 6}
    payload = b"".join(struct.pack(">HI", names[key], value) for key, value in values.items())
    return frame(SETTINGS, payload=payload)


def message(body: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(body)) + body


def window(stream: int, increment: int) -> bytes:
    return frame(WINDOW, 0, stream, struct.pack(">I", increment))


def to(path: str, *more: tuple[str, str]) -> Fields:
    return [(":path", path) if name == ":path" else (name, value) for name, value in REQUEST] + [
        *more
    ]


@dataclass(frozen=True)
class Frame:
    """One frame that the connection wrote; header blocks decoded."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The code of RST_STREAM, the increment of WINDOW_UPDATE."""
        return int.from_bytes(self.payload[:4])

    @property
    def code(self) -> int:
        """The code of GOAWAY."""
        return int.from_bytes(self.payload[4:8])


class Reader:
    """Reads what one connection writes."""

    def __init__(self) -> None:
        self.decoder = hpack.Decoder()

    def read(self, data: bytes) -> list[Frame]:
        frames = []
        while data:
            size = int.from_bytes(data[:3])
            kind, flags, stream = struct.unpack(">BBI", data[3:9])
            payload, data = data[9 : 9 + size], data[9 + size :]
            fields = {}
            if kind == HEADERS:
                assert flags & END_HEADERS
                fields = {str(k): str(v) for k, v in self.decoder.decode(payload)}
            frames.append(Frame(kind, flags, stream, payload, fields))
        return frames
