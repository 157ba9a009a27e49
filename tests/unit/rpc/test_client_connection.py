"""The client's connection: what a server's frames come to, and both roles talking to each other."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from nereid.rpc.client_connection import (
    ClientConnection,
    ClientStream,
    outcome_of,
    request_block,
)
from nereid.rpc.control import Limits
from nereid.rpc.status import NotProcessedError, RpcError, Status
from nereid.rpc.wire import PREFACE, Code
from tests.unit.rpc.frames_of import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST,
    SETTINGS,
    WINDOW,
    Frame,
    Reader,
    Side,
    frame,
    message,
    settings,
    window,
)

OPEN = [(":status", "200"), ("content-type", "application/grpc")]
ENDED = END_HEADERS | END_STREAM


class Ends:
    """A client connection and the streams opened on it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.connection = ClientConnection(limits or Limits(trusting=True))
        self.freed = 0
        self.connection.freed = self._freed
        self.encoder = hpack.Encoder()
        self.reader = Reader()
        self.messages: list[bytes] = []
        self.closes: list[RpcError | None] = []
        self.opens = 0
        opening = b"".join(self.connection.take())
        assert opening.startswith(PREFACE)
        self.opening = self.reader.read(opening[len(PREFACE) :])
        self.give(settings())
        self.take()

    def _freed(self) -> None:
        self.freed += 1

    def give(self, *parts: bytes) -> Ends:
        for part in parts:
            self.connection.receive(part)
        return self

    def take(self) -> list[Frame]:
        data = b""
        while out := self.connection.take():
            data += b"".join(out)
        return self.reader.read(data)

    def one(self, kind: int) -> Frame:
        frames = [each for each in self.take() if each.kind == kind]
        assert len(frames) == 1, frames
        return frames[0]

    def headers(self, fields: list[tuple[str, str]], flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, 1, self.encoder.encode(fields))

    def stream(self) -> ClientStream:
        block = request_block("/test/Echo", "host", (("a", "b"),), timeout_s=2)
        stream = ClientStream(block, self.messages.append, self.closes.append)
        stream.on_open = self._opened
        return stream

    def _opened(self) -> None:
        self.opens += 1

    def start(self) -> ClientStream:
        stream = self.stream()
        self.connection.start(stream)
        return stream

    @property
    def error(self) -> RpcError:
        assert len(self.closes) == 1
        error = self.closes[0]
        assert error is not None
        return error


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_the_opening(ends: Ends) -> None:
    assert dict(struct.iter_unpack(">HI", ends.opening[0].payload))[2] == 0
    assert ends.opening[1].kind == WINDOW


def test_a_call(ends: Ends) -> None:
    stream = ends.start()
    stream.send(b"question")
    stream.half_close()
    stream.half_close()
    head, data, end = ends.take()
    assert head.fields == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/test/Echo",
        ":authority": "host",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "nereid-rpc",
        "grpc-accept-encoding": "identity,deflate,gzip",
        "a": "b",
        "grpc-timeout": "2000000u",
    }
    assert data.payload == message(b"question")
    assert (end.kind, end.flags, end.payload) == (DATA, END_STREAM, b"")
    ends.give(ends.headers(OPEN))
    assert ends.opens == 1
    ends.give(
        frame(DATA, 0, 1, message(b"answer")),
        ends.headers([("grpc-status", "0"), ("k", "v")], ENDED),
    )
    assert ends.messages == [b"answer"]
    assert ends.closes == [None]
    assert ends.take() == []
    assert not ends.connection.streams


def test_secure_requests_say_so() -> None:
    block = request_block("/a", "h", (), secure=True)
    fields: list[Any] = [tuple(pair) for pair in hpack.Decoder().decode(block)]
    assert (":scheme", "https") in fields


def test_a_stream_used_before_its_connection(ends: Ends) -> None:
    stream = ends.stream()
    stream.send(b"early")
    stream.pause()
    stream.resume()
    assert stream.buffered_bytes == 10
    stream.half_close()
    ends.connection.start(stream)
    assert stream.buffered_bytes == 0
    assert [each.kind for each in ends.take()] == [HEADERS, DATA, DATA]


def test_a_stream_cancelled_before_its_connection(ends: Ends) -> None:
    stream = ends.stream()
    left: list[ClientStream] = []
    stream.leave = left.append
    stream.cancel()
    stream.cancel()
    assert left == [stream]
    other = ends.stream()
    other.cancel()
    assert ends.closes == []


def test_cancelling(ends: Ends) -> None:
    stream = ends.start()
    ends.take()
    stream.cancel()
    assert ends.one(RST).number == Code.CANCEL
    ends.give(ends.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"late")))
    assert ends.messages == []
    assert ends.closes == []
    assert ends.connection.dead is None
    assert ends.freed >= 1


def test_trailers_only(ends: Ends) -> None:
    ends.start()
    ends.take()
    fields = [*OPEN, ("grpc-status", "5"), ("grpc-message", "no%20such"), ("k", "v")]
    ends.give(ends.headers(fields, ENDED))
    assert ends.error.status == Status.NOT_FOUND
    assert ends.error.message == "no such"
    assert ends.error.trailers == (("k", "v"),)
    # Our side was still open.
    assert ends.one(RST).number == Code.CANCEL


def test_informational_answers_are_passed_over(ends: Ends) -> None:
    ends.start()
    ends.give(ends.headers([(":status", "103")]), ends.headers(OPEN))
    assert ends.opens == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(":status", "503")], Status.UNAVAILABLE),
        ([(":status", "404"), ("content-type", "text/html")], Status.UNIMPLEMENTED),
        ([(":status", "200"), ("content-type", "text/html")], Status.UNKNOWN),
        ([(":status", "415"), ("grpc-status", "16")], Status.UNAUTHENTICATED),
        ([("content-type", "application/grpc")], Status.UNKNOWN),
        ([(":status", "x")], Status.UNKNOWN),
    ],
)
@pytest.mark.parametrize("flags", [END_HEADERS, ENDED])
def test_what_is_no_grpc_answer(
    ends: Ends, fields: list[tuple[str, str]], status: Status, flags: int
) -> None:
    ends.start()
    ends.give(ends.headers(fields, flags))
    assert ends.error.status == status
    assert not ends.connection.streams


def test_missing_and_odd_trailers() -> None:
    ends = Ends()
    ends.start()
    ends.give(ends.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"x")))
    assert ends.error.status == Status.INTERNAL
    for fields, status in (
        ([(b"a", b"b")], Status.UNKNOWN),
        ([(b"grpc-status", b"99")], Status.UNKNOWN),
        ([(b"grpc-status", b"x"), (b"grpc-message", b"m")], Status.UNKNOWN),
        ([(b"grpc-message", b"m"), (b"grpc-status", b"10")], Status.ABORTED),
    ):
        assert outcome_of(fields).status == status
    assert outcome_of([(b"grpc-message", b"m"), (b"grpc-status", b"10")]).message == "m"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.CANCEL, Status.CANCELLED),
        (Code.ENHANCE_YOUR_CALM, Status.RESOURCE_EXHAUSTED),
        (Code.PROTOCOL_ERROR, Status.INTERNAL),
        (Code.REFUSED_STREAM, Status.UNAVAILABLE),
    ],
)
def test_resets(ends: Ends, code: Code, status: Status) -> None:
    ends.start()
    ends.give(frame(RST, 0, 1, struct.pack(">I", code)))
    assert ends.error.status == status
    assert isinstance(ends.error, NotProcessedError) == (code == Code.REFUSED_STREAM)


def test_goaway_tells_what_was_not_processed(ends: Ends) -> None:
    first, second = ends.start(), ends.start()
    ends.give(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0) + b"moving"))
    assert isinstance(ends.error, NotProcessedError)
    assert "moving" in ends.error.message
    assert second.done
    assert not first.done
    assert not ends.connection.usable


def test_the_connection_is_lost(ends: Ends) -> None:
    ends.start()
    ends.connection.lost_streams()
    assert ends.error.status == Status.UNAVAILABLE
    assert not ends.connection.usable


def test_the_servers_limit(ends: Ends) -> None:
    assert ends.connection.has_room
    ends.start()
    ends.give(settings(streams=1))
    assert not ends.connection.has_room
    ends.give(settings(streams=2))
    assert ends.connection.has_room


def test_bad_messages(ends: Ends) -> None:
    ends.start()
    ends.take()
    ends.give(frame(DATA, 0, 1, message(b"before HEADERS")))
    assert ends.error.status == Status.INTERNAL
    assert ends.one(RST).number == Code.CANCEL


def test_a_cut_off_message(ends: Ends) -> None:
    ends.start()
    ends.give(ends.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"cut")[:-1]))
    assert ends.error.status == Status.INTERNAL


def test_a_cut_off_message_before_an_error_is_the_error(ends: Ends) -> None:
    ends.start()
    ends.give(ends.headers(OPEN), frame(DATA, 0, 1, message(b"cut")[:-1]))
    ends.give(ends.headers([("grpc-status", "8")], ENDED))
    assert ends.error.status == Status.RESOURCE_EXHAUSTED


def test_an_owner_that_fails(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    stream = ends.start()

    def on_message(body: bytes) -> None:
        raise KeyError("mine")

    stream.on_message = on_message
    ends.give(ends.headers(OPEN), frame(DATA, 0, 1, message(b"x")))
    assert ends.error.status == Status.INTERNAL
    assert "mine" in caplog.text
    assert ends.connection.dead is None


def test_stream_errors_of_the_server(ends: Ends) -> None:
    ends.start()
    ends.give(ends.headers(OPEN), ends.headers([("a", "b")]))
    assert ends.error.status == Status.INTERNAL
    ends.give(ends.headers(OPEN))
    assert ends.connection.dead is None


def test_a_head_too_large() -> None:
    ends = Ends(Limits(trusting=True, max_header_list_bytes=200))
    ends.start()
    ends.give(ends.headers([*OPEN, ("a", "x" * 200)]))
    assert ends.error.status == Status.INTERNAL


def test_encodings_of_the_answer(ends: Ends) -> None:
    stream = ends.start()
    ends.give(ends.headers([*OPEN, ("grpc-encoding", "gzip")]))
    assert stream.encoding == "gzip"


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (frame(HEADERS, END_HEADERS, 7, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 2, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 9, b""), Code.PROTOCOL_ERROR),
        (frame(RST, 0, 2, bytes(4)), Code.PROTOCOL_ERROR),
        (settings(push=1), Code.PROTOCOL_ERROR),
    ],
)
def test_connection_errors(ends: Ends, attack: bytes, code: Code) -> None:
    ends.start()
    ends.give(attack)
    assert ends.connection.dead is not None
    assert ends.connection.dead.code == code


def test_a_server_is_trusted_with_pings(ends: Ends) -> None:
    ends.give(frame(PING, 0, 0, bytes(8)) * 5000)
    assert ends.connection.dead is None


def test_padding_and_windows(ends: Ends) -> None:
    stream = ends.start()
    ends.give(ends.headers(OPEN))
    ends.take()
    stream.pause()
    body = message(bytes(200_000))
    for at in range(0, len(body), 50_000):
        ends.give(frame(DATA, PADDED, 1, b"\x03" + body[at : at + 50_000] + bytes(3)))
    for _ in range(2):
        ends.give(frame(DATA, 0, 1, message(bytes(250_000))))
    assert [each for each in ends.take() if each.kind == WINDOW] == []
    stream.resume()
    assert ends.one(WINDOW).stream == 1
    assert [len(each) for each in ends.messages] == [200_000, 250_000, 250_000]


def test_writable(ends: Ends) -> None:
    stream = ends.start()
    events: list[str] = []
    stream.writable()
    stream.on_writable = lambda: events.append("writable")
    stream.send(bytes(200_000))
    ends.take()
    assert stream.buffered_bytes > 100_000
    ends.give(window(0, 1 << 20), window(1, 1 << 20))
    ends.take()
    # Below the mark, then nothing left.
    assert events == ["writable"] * 2
    stream.cancel()
    stream.send(b"x")
    stream.half_close()


class Talk:
    """Both roles, and bytes handed to and fro in cuts of any size."""

    def __init__(self, limits: Limits, cut: int) -> None:
        self.side = Side(limits, greet=False)
        self.connection = ClientConnection(limits)
        self.cut = cut
        self.messages: dict[int, list[bytes]] = {}
        self.closes: dict[int, RpcError | None] = {}

    def call(self, name: int, path: str, bodies: list[bytes]) -> ClientStream:
        block = request_block(path, "h", ())
        self.messages[name] = []

        def on_close(error: RpcError | None) -> None:
            self.closes[name] = error

        stream = ClientStream(block, self.messages[name].append, on_close)
        self.connection.start(stream)
        for body in bodies:
            stream.send(body)
        stream.half_close()
        return stream

    def run(self) -> None:
        while True:
            up, down = self.connection.take(), self.side.connection.take()
            if not up and not down:
                return
            self._hand(b"".join(up), self.side.connection.receive)
            self._hand(b"".join(down), self.connection.receive)

    def _hand(self, data: bytes, receive: Callable[[bytes], None]) -> None:
        for at in range(0, len(data), self.cut):
            receive(data[at : at + self.cut])


@settings_of(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 120_000), max_size=4), min_size=1, max_size=4),
    st.integers(1000, 70_000),
    st.sampled_from([65_536, 70_000, 200_000]),
)
def test_both_roles_talk_to_each_other(sizes: list[list[int]], cut: int, window: int) -> None:
    """Streams with bodies far above every window: all arrives, in order, and nothing is left."""
    limits = Limits(
        stream_window_bytes=window,
        connection_window_bytes=window + 5000,
        max_frame_bytes=16_384 + cut,
        trusting=True,
    )
    talk = Talk(limits, cut)
    bodies = [[bytes([turn]) * size for turn, size in enumerate(each)] for each in sizes]
    for name, each in enumerate(bodies):
        talk.call(name, "/test/Chat", each)
    talk.run()
    assert list(talk.messages.values()) == bodies
    assert talk.closes == dict.fromkeys(range(len(bodies)))
    assert not talk.connection.streams
    assert not talk.side.connection.streams


def test_acks_of_settings(ends: Ends) -> None:
    ends.give(settings(frame=20_000), frame(SETTINGS, ACK))
    assert ends.one(SETTINGS).flags == ACK
