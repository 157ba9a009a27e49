"""Building and reading frames for the tests of the pure connection."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import hpack

from nereid.rpc.call import Call, Handlers
from nereid.rpc.control import Limits
from nereid.rpc.deadlines import Deadlines
from nereid.rpc.dispatch import routes_of
from nereid.rpc.server_connection import ServerCall, ServerConnection
from nereid.rpc.service import Service
from nereid.rpc.wire import PREFACE

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


class Side:
    """A server connection with one method of each kind, and a clock to turn by hand."""

    def __init__(self, limits: Limits | None = None, *, greet: bool = True) -> None:
        self.now = 1000.0
        self.calls: list[Call] = []
        self.events: list[Any] = []
        handlers = Handlers(
            unary={"/test/Echo": self.echo, "/test/Hold": self.hold, "/test/Fail": self.broken},
            async_unary={"/test/Later": self.later},
            stream={"/test/Chat": self.chat, "/test/Raw": self.raw},
        )
        self.deadlines: Deadlines[ServerCall] = Deadlines()
        self.service = Service(routes_of(handlers), self.deadlines, lambda: self.now, self.spawn)
        self.connection = ServerConnection(limits or Limits(), self.service, "peer")
        self.encoder = hpack.Encoder()
        self.reader = Reader()
        if greet:
            self.give(PREFACE + settings())
            self.take()

    def give(self, *parts: bytes) -> Side:
        for part in parts:
            self.connection.receive(part)
        return self

    def take(self) -> list[Frame]:
        data = b""
        while out := self.connection.take():
            data += b"".join(out)
        return self.reader.read(data)

    def headers(self, stream: int, fields: Fields | None = None, flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, stream, self.encoder.encode(fields or REQUEST))

    def request(self, stream: int, body: bytes = b"hi", path: str = "/test/Echo") -> bytes:
        return self.headers(stream, to(path)) + frame(DATA, END_STREAM, stream, message(body))

    def one(self, kind: int) -> Frame:
        """The one frame of this kind among what was written."""
        frames = [each for each in self.take() if each.kind == kind]
        assert len(frames) == 1, frames
        return frames[0]

    # --- handlers

    def _keep(self, call: Call) -> None:
        self.calls.append(call)
        call.on_cancel = lambda: self.events.append("cancelled")

    def echo(self, call: Call, body: bytes) -> None:
        self.calls.append(call)
        call.reply(body)

    def hold(self, call: Call, body: bytes) -> None:
        self._keep(call)

    def broken(self, call: Call, body: bytes) -> None:
        raise ValueError("secret")

    async def later(self, call: Call, body: bytes) -> bytes:
        return body

    def spawn(self, call: Call, handler: object, body: bytes) -> None:
        self.events.append((call.path, body))

    def chat(self, call: Call) -> None:
        self._keep(call)
        call.on_message = call.send
        call.on_half_close = call.finish

    def raw(self, call: Call) -> None:
        self._keep(call)
        call.on_message = self.events.append
        call.on_half_close = lambda: self.events.append("half closed")
        call.on_writable = lambda: self.events.append("writable")
