"""RFC 9113 as a table: what a client may send, and what must become of it; named by section.

A row's frames follow a good preface with SETTINGS.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import hpack

from nereid.rpc.http2.frames import Code
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
    PUSH,
    REQUEST,
    RST,
    SETTINGS,
    WINDOW,
    Fields,
    Frame,
    frame,
    message,
    settings,
    to,
    window,
)


@dataclass(frozen=True)
class Ended:
    """The whole connection client, with GOAWAY."""

    code: Code


@dataclass(frozen=True)
class Reset:
    """Stream 1 ends with RST_STREAM; the connection serves on."""

    code: Code


@dataclass(frozen=True)
class Replied:
    """Stream 1 gets the message and OK."""

    body: bytes = b"hi"


@dataclass(frozen=True)
class Refused:
    """Stream 1 gets a response without a handler; the connection serves on."""

    http_status: int
    grpc_status: int


Outcome = Ended | Reset | Replied | Refused
PROTOCOL, FRAME_SIZE, FLOW = (
    Ended(Code.PROTOCOL_ERROR),
    Ended(Code.FRAME_SIZE_ERROR),
    Ended(Code.FLOW_CONTROL_ERROR),
)
MALFORMED = Reset(Code.PROTOCOL_ERROR)
CLOSED = Ended(Code.STREAM_CLOSED)

END_BOTH = END_HEADERS | END_STREAM
HOLD = to("/test/Hold")
LARGEST = (1 << 31) - 1


class Client:
    """Writes frames; one header table for all of a row's blocks."""

    def __init__(self) -> None:
        self.encoder = hpack.Encoder()

    def block(self, fields: Fields | None = None) -> bytes:
        return self.encoder.encode(fields or REQUEST)

    def headers(self, fields: Fields | None = None, flags: int = END_HEADERS, on: int = 1) -> bytes:
        return frame(HEADERS, flags, on, self.block(fields))

    def data(self, body: bytes = b"hi", on: int = 1) -> bytes:
        return frame(DATA, END_STREAM, on, message(body))

    def request(self, fields: Fields | None = None, on: int = 1, body: bytes = b"hi") -> bytes:
        return self.headers(fields, on=on) + self.data(body, on)

    def held(self, on: int = 1) -> bytes:
        """A request whose response does not come."""
        return self.request(HOLD, on)

    def literal(self, name: bytes, value: bytes, *before: tuple[str, str]) -> bytes:
        """A request with a field that the encoder might not write as it is."""
        block = self.block([*REQUEST, *before])
        block += b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
        return frame(HEADERS, END_HEADERS, 1, block) + self.data()


def _but(name: str, *instead: tuple[str, str]) -> Fields:
    """The request's fields with one left out or replaced."""
    fields = []
    for field in REQUEST:
        fields += [field] if field[0] != name else list(instead)
    return fields


def _setting(key: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", key, value))


ROWS: dict[str, tuple[Callable[[Client], bytes], Outcome]] = {
    # --- 4: frames
    "4.1 an unknown type is ignored": (
        lambda c: frame(0xFA, 0xFF, 1, b"x") + c.request(),
        Replied(),
    ),
    "4.1 a large unknown type is ignored": (
        lambda c: frame(0xFA, 0, 0, bytes(200_000)) + c.request(),
        Replied(),
    ),
    "4.1 the reserved bit is ignored": (
        lambda c: (
            frame(HEADERS, END_HEADERS, 1 | 1 << 31, c.block())
            + frame(DATA, END_STREAM, 1 | 1 << 31, message(b"hi"))
        ),
        Replied(),
    ),
    "4.1 undefined flags are ignored": (
        lambda c: (
            frame(PING, 0xFE, 0, bytes(8))
            + frame(SETTINGS, 0xFE, 0)
            + frame(HEADERS, END_HEADERS | 0xC2, 1, c.block())
            + frame(DATA, END_STREAM | 0xF6, 1, message(b"hi"))
        ),
        Replied(),
    ),
    "4.2 DATA of the announced size": (
        lambda c: (
            c.headers()
            + frame(DATA, 0, 1, (body := message(bytes(1 << 18)))[: 1 << 18])
            + frame(DATA, END_STREAM, 1, body[1 << 18 :])
            + window(1, 1 << 20)
            + window(0, 1 << 20)
        ),
        Replied(bytes(1 << 18)),
    ),
    "4.2 a frame beyond the announced size": (
        lambda c: struct.pack(">I", (1 << 18) + 1)[1:] + bytes((DATA, 0)) + bytes(4),
        FRAME_SIZE,
    ),
    "4.3 a block that cannot be decoded": (
        lambda c: frame(HEADERS, END_BOTH, 1, b"\xff" * 10),
        Ended(Code.COMPRESSION_ERROR),
    ),
    "4.3 a block that is cut off": (
        lambda c: frame(HEADERS, END_BOTH, 1, c.block()[:-1]),
        Ended(Code.COMPRESSION_ERROR),
    ),
    "4.3 a block on a refused stream still counts for the table": (
        lambda c: (
            c.headers(_but(":path", ("a", "b")), END_BOTH, 3) + c.request([*REQUEST, ("a", "b")], 5)
        ),
        Replied(),
    ),
    "4.3.1 a table size within the limit": (
        lambda c: frame(HEADERS, END_HEADERS, 1, b"\x20\x3f\xe1\x1f" + c.block()) + c.data(),
        Replied(),
    ),
    "4.3.1 a table size beyond the limit": (
        lambda c: frame(HEADERS, END_HEADERS, 1, b"\x3f\xe2\x1f" + c.block()),
        Ended(Code.COMPRESSION_ERROR),
    ),
    # --- 5: streams
    "5.1 idle: DATA": (lambda c: frame(DATA, 0, 1, b"x"), PROTOCOL),
    "5.1 idle: RST_STREAM": (lambda c: frame(RST, 0, 1, bytes(4)), PROTOCOL),
    "5.1 idle: WINDOW_UPDATE": (lambda c: window(1, 1), PROTOCOL),
    "5.1 idle: CONTINUATION": (lambda c: frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL),
    "5.1 idle: PRIORITY": (
        lambda c: frame(PRIORITY, 0, 1, b"\0\0\0\0\x10") + c.request(),
        Replied(),
    ),
    "5.1 half closed (remote): DATA": (
        lambda c: c.held() + frame(DATA, 0, 1, b"x"),
        Reset(Code.STREAM_CLOSED),
    ),
    "5.1 half closed (remote): HEADERS": (
        lambda c: c.held() + c.headers([("a", "b")], END_BOTH),
        Reset(Code.STREAM_CLOSED),
    ),
    "5.1 half closed (remote): WINDOW_UPDATE, PRIORITY and RST_STREAM": (
        lambda c: (
            c.held(3)
            + window(3, 1)
            + frame(PRIORITY, 0, 3, bytes(5))
            + frame(RST, 0, 3, bytes(4))
            + c.request(on=5)
        ),
        Replied(),
    ),
    "5.1 closed: DATA": (
        lambda c: c.request() + frame(DATA, 0, 1, b"x"),
        Reset(Code.STREAM_CLOSED),
    ),
    "5.1 closed: HEADERS": (lambda c: c.request() + c.headers(flags=END_BOTH), CLOSED),
    "5.1 closed by RST_STREAM: DATA": (
        lambda c: c.headers() + frame(RST, 0, 1, bytes(4)) + frame(DATA, 0, 1, b"x"),
        Reset(Code.STREAM_CLOSED),
    ),
    "5.1 closed: WINDOW_UPDATE, RST_STREAM and PRIORITY that crossed the end": (
        lambda c: (
            c.request(on=3)
            + window(3, 1)
            + frame(RST, 0, 3, bytes(4))
            + frame(PRIORITY, 0, 3, bytes(5))
            + c.request(on=5)
        ),
        Replied(),
    ),
    "5.1.1 an even id": (lambda c: c.headers(on=2), PROTOCOL),
    "5.1.1 stream 0": (lambda c: c.headers(on=0), PROTOCOL),
    "5.1.1 an id below one that was used": (lambda c: c.request(on=5) + c.request(on=3), CLOSED),
    "5.1.1 ids may be skipped": (lambda c: c.request(on=101), Replied()),
    "5.1.1 the largest id": (lambda c: c.request(on=LARGEST), Replied()),
    "5.1.2 streams beyond the limit": (
        lambda c: b"".join(c.held(on) for on in range(3, 2051, 2)) + c.request(on=2051),
        Reset(Code.REFUSED_STREAM),
    ),
    "5.3 priorities are ignored": (
        lambda c: (
            frame(PRIORITY, 0, 9, b"\x80\0\0\x0b\xff")
            + frame(HEADERS, END_HEADERS | PRIORITISED, 1, b"\x80\0\0\x63\xff" + c.block())
            + c.data()
        ),
        Replied(),
    ),
    "5.3.1 PRIORITY on itself": (
        lambda c: c.held() + frame(PRIORITY, 0, 1, b"\0\0\0\1\1"),
        MALFORMED,
    ),
    "5.3.1 HEADERS that depend on their own stream": (
        lambda c: frame(HEADERS, PRIORITISED | END_HEADERS, 1, b"\0\0\0\1\0"),
        PROTOCOL,
    ),
    "5.5 an extension's frame inside a block": (
        lambda c: frame(HEADERS, 0, 1, c.block()) + frame(0xFA, 0, 1),
        PROTOCOL,
    ),
    # --- 6: frame types
    "6.1 DATA on stream 0": (lambda c: frame(DATA, 0, 0, b"x"), PROTOCOL),
    "6.1 padding": (
        lambda c: (
            c.headers()
            + frame(DATA, PADDED, 1, b"\x05" + message(b"hi")[:3] + bytes(5))
            + frame(DATA, PADDED, 1, b"\x02" + bytes(2))
            + frame(DATA, PADDED | END_STREAM, 1, b"\0" + message(b"hi")[3:])
        ),
        Replied(),
    ),
    "6.1 nothing but padding": (
        lambda c: c.headers() + frame(DATA, PADDED, 1, b"\x04" + bytes(4)) + c.data(),
        Replied(),
    ),
    "6.1 padding longer than its frame": (
        lambda c: c.headers() + frame(DATA, PADDED, 1, b"\x05abcd"),
        PROTOCOL,
    ),
    "6.1 padding without its length": (lambda c: c.headers() + frame(DATA, PADDED, 1), PROTOCOL),
    "6.2 HEADERS on stream 0": (lambda c: frame(HEADERS, 0, 0, c.block()), PROTOCOL),
    "6.2 padding": (
        lambda c: (
            frame(HEADERS, END_HEADERS | PADDED, 1, b"\x03" + c.block() + bytes(3)) + c.data()
        ),
        Replied(),
    ),
    "6.2 padding longer than its frame": (
        lambda c: frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09abcd"),
        PROTOCOL,
    ),
    "6.2 too short for its priority": (
        lambda c: frame(HEADERS, END_HEADERS | PRIORITISED, 1, b"abcd"),
        FRAME_SIZE,
    ),
    "6.2 END_STREAM on HEADERS, the block goes on": (
        lambda c: (
            frame(HEADERS, END_STREAM, 1, (block := c.block())[:4])
            + frame(CONTINUATION, END_HEADERS, 1, block[4:])
        ),
        Refused(200, 12),
    ),
    "6.3 PRIORITY on stream 0": (lambda c: frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "6.3 PRIORITY of a wrong size": (
        lambda c: c.held() + frame(PRIORITY, 0, 1, bytes(4)),
        Reset(Code.FRAME_SIZE_ERROR),
    ),
    "6.3 PRIORITY of a wrong size for an idle stream": (
        lambda c: frame(PRIORITY, 0, 1, bytes(4)),
        FRAME_SIZE,
    ),
    "6.4 RST_STREAM on stream 0": (lambda c: frame(RST, 0, 0, bytes(4)), PROTOCOL),
    "6.4 RST_STREAM of a wrong size": (
        lambda c: c.headers() + frame(RST, 0, 1, bytes(5)),
        FRAME_SIZE,
    ),
    "6.5 SETTINGS on a stream": (lambda c: frame(SETTINGS, 0, 1), PROTOCOL),
    "6.5 an acknowledgement with content": (
        lambda c: frame(SETTINGS, ACK, 0, bytes(6)),
        FRAME_SIZE,
    ),
    "6.5 SETTINGS of a wrong size": (lambda c: frame(SETTINGS, 0, 0, bytes(7)), FRAME_SIZE),
    "6.5.2 unknown settings are ignored": (
        lambda c: _setting(0x7777, 1) + _setting(0, 9) + _setting(8, 1) + c.request(),
        Replied(),
    ),
    "6.5.2 ENABLE_PUSH out of range": (lambda c: settings(push=2), PROTOCOL),
    "6.5.2 INITIAL_WINDOW_SIZE out of range": (lambda c: settings(window=1 << 31), FLOW),
    "6.5.2 MAX_FRAME_SIZE too small": (lambda c: settings(frame=16_383), PROTOCOL),
    "6.5.2 MAX_FRAME_SIZE too large": (lambda c: settings(frame=1 << 24), PROTOCOL),
    "6.5.2 limits of all sizes": (
        lambda c: (
            settings(table=(1 << 32) - 1, streams=0, list=0, frame=(1 << 24) - 1) + c.request()
        ),
        Replied(),
    ),
    "6.5.3 the last of several values counts": (
        lambda c: _setting(4, 0) + _setting(4, 100) + c.request(),
        Replied(),
    ),
    "6.6 PUSH_PROMISE from a client": (
        lambda c: c.headers() + frame(PUSH, END_HEADERS, 1, bytes(4)),
        PROTOCOL,
    ),
    "6.7 PING on a stream": (lambda c: frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "6.7 PING of a wrong size": (lambda c: frame(PING, 0, 0, bytes(9)), FRAME_SIZE),
    "6.8 GOAWAY on a stream": (lambda c: frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "6.8 GOAWAY of a wrong size": (lambda c: frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE),
    "6.8 a client that leaves gets its responses": (
        lambda c: frame(GOAWAY, 0, 0, bytes(8) + b"bye") + c.request(),
        Replied(),
    ),
    "6.9 WINDOW_UPDATE of a wrong size": (lambda c: frame(WINDOW, 0, 0, bytes(3)), FRAME_SIZE),
    "6.9 WINDOW_UPDATE of zero": (lambda c: window(0, 0), PROTOCOL),
    "6.9 WINDOW_UPDATE of zero for a stream": (lambda c: c.held() + window(1, 0), MALFORMED),
    "6.9 the reserved bit of WINDOW_UPDATE": (
        lambda c: window(0, 1 | 1 << 31) + c.request(),
        Replied(),
    ),
    "6.9.1 the connection's window overflows": (lambda c: window(0, LARGEST), FLOW),
    "6.9.1 a stream's window overflows": (
        lambda c: c.held() + window(1, LARGEST),
        Reset(Code.FLOW_CONTROL_ERROR),
    ),
    "6.9.2 a new initial window for open streams": (
        lambda c: settings(window=0) + c.request() + settings(window=3) + settings(window=200),
        Replied(),
    ),
    "6.9.2 a new initial window below what was sent": (
        lambda c: c.request(on=1) + settings(window=0) + c.request(on=3) + settings(window=50),
        Replied(),
    ),
    "6.9.2 a new initial window overflows an open stream's": (
        lambda c: c.held() + window(1, LARGEST - 65_535) + settings(window=65_536),
        FLOW,
    ),
    "6.10 CONTINUATION": (
        lambda c: (
            frame(HEADERS, 0, 1, (block := c.block())[:1])
            + frame(CONTINUATION, 0, 1, block[1:2])
            + frame(CONTINUATION, 0, 1)
            + frame(CONTINUATION, END_HEADERS, 1, block[2:])
            + c.data()
        ),
        Replied(),
    ),
    "6.10 CONTINUATION without HEADERS": (
        lambda c: c.headers() + frame(CONTINUATION, END_HEADERS, 1, b""),
        PROTOCOL,
    ),
    "6.10 CONTINUATION on stream 0": (lambda c: frame(CONTINUATION, END_HEADERS, 0), PROTOCOL),
    "6.10 CONTINUATION of another stream": (
        lambda c: frame(HEADERS, 0, 1, c.block()) + frame(CONTINUATION, END_HEADERS, 3),
        PROTOCOL,
    ),
    "6.10 DATA inside a block": (
        lambda c: frame(HEADERS, 0, 1, c.block()) + frame(DATA, 0, 1, b"x"),
        PROTOCOL,
    ),
    "6.10 SETTINGS inside a block": (
        lambda c: frame(HEADERS, 0, 1, c.block()) + frame(SETTINGS),
        PROTOCOL,
    ),
    # --- 7: error codes
    "7 unknown error codes are as good as known ones": (
        lambda c: (
            c.held(3)
            + frame(RST, 0, 3, b"\xff" * 4)
            + frame(GOAWAY, 0, 0, bytes(4) + b"\xff" * 4)
            + c.request(on=5)
        ),
        Replied(),
    ),
    # --- 8: HTTP
    "8.1 trailers": (
        lambda c: (
            c.headers()
            + frame(DATA, 0, 1, message(b"hi"))
            + c.headers([("checksum", "1")], END_BOTH)
        ),
        Replied(),
    ),
    "8.1 trailers that do not end the stream": (
        lambda c: c.headers() + c.headers([("a", "b")]),
        MALFORMED,
    ),
    "8.1 pseudo-header fields in trailers": (
        lambda c: c.headers() + c.headers([(":path", "/test/Echo")], END_BOTH),
        MALFORMED,
    ),
    "8.1.1 content-length of more than there is": (
        lambda c: c.request([*REQUEST, ("content-length", "8")]),
        MALFORMED,
    ),
    "8.1.1 content-length of less than there is": (
        lambda c: c.request([*REQUEST, ("content-length", "6")]),
        MALFORMED,
    ),
    "8.1.1 content-length of what there is": (
        lambda c: c.request([*REQUEST, ("content-length", "7")]),
        Replied(),
    ),
    "8.1.1 content-length and no content": (
        lambda c: c.headers([*REQUEST, ("content-length", "1")], END_BOTH),
        MALFORMED,
    ),
    "8.1.1 content-length that is no number": (
        lambda c: c.request([*REQUEST, ("content-length", "-7")]),
        MALFORMED,
    ),
    "8.1.1 contradictory content-length": (
        lambda c: c.request([*REQUEST, ("content-length", "7"), ("content-length", "8")]),
        MALFORMED,
    ),
    "8.2.1 an upper-case name": (lambda c: c.literal(b"X-Upper", b"1"), MALFORMED),
    "8.2.1 a name with a space": (lambda c: c.literal(b"a b", b"1"), MALFORMED),
    "8.2.1 a name with a colon": (lambda c: c.literal(b"a:b", b"1"), MALFORMED),
    "8.2.1 a name beyond ASCII": (lambda c: c.literal(b"\xe9", b"1"), MALFORMED),
    "8.2.1 a name of nothing": (lambda c: c.literal(b"", b"1"), MALFORMED),
    "8.2.1 a value with NUL": (lambda c: c.literal(b"a", b"x\0y"), MALFORMED),
    "8.2.1 a value with CR": (lambda c: c.literal(b"a", b"x\ry"), MALFORMED),
    "8.2.1 a value with LF": (lambda c: c.literal(b"a", b"x\ny"), MALFORMED),
    # RFC 9113 has them refused; gRPC keeps them, and so does its C core.
    "8.2.1 a value that begins with a space": (lambda c: c.literal(b"a", b" x"), Replied()),
    "8.2.1 a value that ends with a tab": (lambda c: c.literal(b"a", b"x\t"), Replied()),
    "8.2.1 an empty value": (lambda c: c.literal(b"a", b""), Replied()),
    "8.2.2 connection": (lambda c: c.request([*REQUEST, ("connection", "close")]), MALFORMED),
    "8.2.2 keep-alive": (lambda c: c.request([*REQUEST, ("keep-alive", "5")]), MALFORMED),
    "8.2.2 proxy-connection": (
        lambda c: c.request([*REQUEST, ("proxy-connection", "close")]),
        MALFORMED,
    ),
    "8.2.2 transfer-encoding": (
        lambda c: c.request([*REQUEST, ("transfer-encoding", "chunked")]),
        MALFORMED,
    ),
    "8.2.2 upgrade": (lambda c: c.request([*REQUEST, ("upgrade", "h2c")]), MALFORMED),
    "8.2.2 te of another value": (lambda c: c.request(_but("te", ("te", "gzip"))), MALFORMED),
    "8.2.3 cookies in crumbs": (
        lambda c: c.request([*REQUEST, ("cookie", "a=1"), ("cookie", "b=2")]),
        Replied(),
    ),
    "8.3 an unknown pseudo-header field": (
        lambda c: c.request([(":what", "1"), *REQUEST]),
        MALFORMED,
    ),
    "8.3 a response's pseudo-header field": (
        lambda c: c.request([(":status", "200"), *REQUEST]),
        MALFORMED,
    ),
    "8.3 a pseudo-header field behind a regular one": (
        lambda c: c.request([*REQUEST[1:], REQUEST[0]]),
        MALFORMED,
    ),
    "8.3.1 no :method": (lambda c: c.request(_but(":method")), MALFORMED),
    "8.3.1 no :scheme": (lambda c: c.request(_but(":scheme")), MALFORMED),
    "8.3.1 no :path": (lambda c: c.request(_but(":path")), MALFORMED),
    "8.3.1 an empty :path": (lambda c: c.request(_but(":path", (":path", ""))), MALFORMED),
    "8.3.1 two :path": (lambda c: c.request([REQUEST[2], *REQUEST]), MALFORMED),
    "8.3.1 no :authority": (lambda c: c.request(_but(":authority")), Replied()),
    "8.3.1 host instead of :authority": (
        lambda c: c.request([*_but(":authority"), ("host", "x")]),
        Replied(),
    ),
    "8.3.1 a method that is not gRPC's": (
        lambda c: c.headers(_but(":method", (":method", "GET")), END_BOTH),
        Refused(405, 13),
    ),
    "8.5 CONNECT": (
        lambda c: c.headers([(":method", "CONNECT"), (":authority", "x:1")], END_BOTH),
        Refused(405, 13),
    ),
    "8.5 CONNECT with :path": (
        lambda c: c.headers(
            [(":method", "CONNECT"), (":authority", "x:1"), (":path", "/"), (":scheme", "http")],
            END_BOTH,
        ),
        MALFORMED,
    ),
    "8.5 CONNECT without :authority": (
        lambda c: c.headers([(":method", "CONNECT")], END_BOTH),
        MALFORMED,
    ),
    # --- 10: what costs much
    "10.5.1 many small CONTINUATION frames": (
        lambda c: frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 100,
        Ended(Code.ENHANCE_YOUR_CALM),
    ),
    "10.5.1 metadata beyond the announced size": (
        lambda c: c.request([*REQUEST, ("a", "x" * 17_000)]),
        Refused(200, 8),
    ),
}

MARK = b"the mark"
MARKED = frame(PING, 0, 0, MARK)


def check_outcome(frames: list[Frame], outcome: Outcome) -> None:
    """Check that these are the frames that a server sends for a row and MARKED after it."""
    kinds = [each.kind for each in frames]
    marked = any(each.kind == PING and each.payload == MARK for each in frames)
    if isinstance(outcome, Ended):
        assert frames[-1].kind == GOAWAY, frames
        assert Code(frames[-1].code) == outcome.code
        assert not marked
        return
    assert GOAWAY not in kinds
    assert marked
    if isinstance(outcome, Reset):
        [reset] = [each for each in frames if each.kind == RST]
        assert Code(reset.number) == outcome.code
        return
    last = max(each.stream for each in frames)
    mine = [each for each in frames if each.stream == last and each.kind in {HEADERS, DATA}]
    fields = {name: text for each in mine for name, text in each.fields.items()}
    assert mine[-1].flags & END_STREAM
    if isinstance(outcome, Refused):
        assert fields[":status"] == str(outcome.http_status)
        assert fields["grpc-status"] == str(outcome.grpc_status)
        return
    assert (fields[":status"], fields["grpc-status"]) == ("200", "0"), fields
    data = b"".join(each.payload for each in mine if each.kind == DATA)
    assert data == message(outcome.body)
