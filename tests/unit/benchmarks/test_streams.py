"""Frames of streams: the end of a stream, and failures.

Kept as a test of an oracle: a failure that is overlooked lets every benchmark pass.
"""

import socket
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


def test_a_closed_connection_fails(pair: Pair) -> None:
    pair.server.close()
    with pytest.raises(BenchError, match="closed the connection"):
        pair.connection.receive(more=False)
