"""Frames of streams: what counts as a response, when a stream ends, what a failure looks like."""

import socket
import struct
from collections.abc import Iterator

import pytest

from benchmarks.failure import BenchError
from benchmarks.streams import Connection, Seen, frame

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 1
RESPONSE = b"\0\0\0\0\x03abc"


class Pair:
    """A connection that expects two responses of 3 bytes, and the server's end of it."""

    def __init__(self) -> None:
        ours, self.server = socket.socketpair(socket.AF_UNIX)
        self.seen = Seen()
        self.connection = Connection(ours, b"message", 2 * len(RESPONSE), self.seen)
        self.connection.open_stream()
        self.connection.send()
        self.server.recv(1 << 16)

    def send(self, *frames: bytes, more: bool = False) -> None:
        self.server.sendall(b"".join(frames))
        self.connection.receive(more)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.server.close()
    made.connection.socket.close()


def test_a_stream_ends_with_its_trailers(pair: Pair) -> None:
    pair.send(frame(HEADERS, 4, 1, b"h"), frame(DATA, 0, 1, RESPONSE))
    assert (pair.seen.streams, len(pair.seen.first_s)) == (0, 1)
    pair.send(frame(DATA, 0, 1, RESPONSE), frame(HEADERS, 4 | END_STREAM, 1, b"t"))
    assert (pair.seen.streams, len(pair.seen.first_s)) == (1, 1)
    assert not pair.connection.streams


def test_a_stream_that_ended_makes_place_for_the_next(pair: Pair) -> None:
    both = frame(DATA, 0, 1, 2 * RESPONSE)
    pair.send(both, frame(HEADERS, 4 | END_STREAM, 1, b"t"), more=True)
    assert list(pair.connection.streams) == [3]
    assert pair.server.recv(1 << 16).endswith(b"message")


def test_frames_arrive_in_any_pieces(pair: Pair) -> None:
    whole = frame(DATA, 0, 1, 2 * RESPONSE) + frame(HEADERS, 4 | END_STREAM, 1, b"t")
    for byte in range(len(whole)):
        pair.send(whole[byte : byte + 1])
    assert pair.seen.streams == 1


def test_settings_and_pings_are_acknowledged(pair: Pair) -> None:
    pair.send(frame(SETTINGS, 0, 0, b""), frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b""))
    expected = frame(SETTINGS, ACK, 0, b"") + frame(PING, ACK, 0, b"12345678")
    assert pair.server.recv(1 << 16) == expected


@pytest.mark.parametrize(
    ("frames", "match"),
    [
        ([frame(DATA, 0, 1, RESPONSE), frame(HEADERS, 5, 1, b"t")], "8 bytes, expected 16"),
        ([frame(RESET, 0, 1, b"\0\0\0\x08")], "ended stream 1 with 00000008"),
        ([frame(GOAWAY, 0, 0, b"\0\0\0\0")], "ended stream 0"),
    ],
    ids=["too-few", "reset", "goaway"],
)
def test_failures(pair: Pair, frames: list[bytes], match: str) -> None:
    with pytest.raises(BenchError, match=match):
        pair.send(*frames)


def test_a_reset_of_a_stream_that_has_ended_is_none(pair: Pair) -> None:
    end = frame(DATA, 0, 1, 2 * RESPONSE), frame(HEADERS, 4 | END_STREAM, 1, b"t")
    pair.send(*end, frame(RESET, 0, 1, b"\0\0\0\0"))
    assert pair.seen.streams == 1


def test_a_closed_connection_fails(pair: Pair) -> None:
    pair.server.close()
    with pytest.raises(BenchError, match="closed the connection"):
        pair.connection.receive(more=False)


def test_the_servers_window_bounds_what_is_sent() -> None:
    ours, server = socket.socketpair(socket.AF_UNIX)
    with ours, server:
        connection = Connection(ours, bytes(30_000), len(RESPONSE), Seen())
        connection.open_stream()
        connection.open_stream()
        with pytest.raises(BenchError, match="does not open its window"):
            connection.open_stream()
        server.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 60_000)))
        connection.receive(more=False)
        connection.open_stream()
