"""Responses that are compressed elsewhere than where they are sent: their order, and their end."""

from __future__ import annotations

import gzip
import os

import pytest

from nereid.rpc.grpc.status import Status
from nereid.rpc.http2.frames import Code
from tests.support.rpc.connection_harness import ServerHarness
from tests.support.rpc.http2_frames import (
    DATA,
    END_STREAM,
    HEADERS,
    RST,
    frame,
    message,
    settings,
    to,
    window,
)

LARGE = b"squeeze me " * 2000
ACCEPTS_GZIP = ("grpc-accept-encoding", "gzip")


@pytest.fixture
def server() -> ServerHarness:
    harness = ServerHarness(compression="low", defer_compression=True)
    harness.feed(settings(window=1 << 20), window(0, 1 << 20))
    harness.sent_frames()
    return harness


def ask(server: ServerHarness, path: str, body: bytes = b"x", stream: int = 1) -> None:
    headers = server.headers(stream, to(path, ACCEPTS_GZIP))
    server.feed(headers + frame(DATA, END_STREAM, stream, message(body)))


def messages(server: ServerHarness) -> list[bytes]:
    """What was sent, decompressed."""
    data = b"".join(each.payload for each in server.sent_frames() if each.kind == DATA)
    found = []
    while data:
        size = int.from_bytes(data[1:5])
        content = data[5 : 5 + size]
        found.append(gzip.decompress(content) if data[0] else content)
        data = data[5 + size :]
    return found


def test_small_responses_are_compressed_at_once(server: ServerHarness) -> None:
    ask(server, "/test/Echo", b"x" * 1000)
    assert messages(server) == [b"x" * 1000]
    assert not server.deflations


def test_a_large_response_and_its_end_wait(server: ServerHarness) -> None:
    ask(server, "/test/Hold")
    (call,) = server.calls
    call.reply(LARGE)
    assert call.done
    assert call.buffered_bytes == len(LARGE)
    assert [each.kind for each in server.sent_frames()] == [HEADERS]
    server.compress_waiting()
    data, trailers = server.sent_frames()
    assert len(data.payload) < 1000
    assert gzip.decompress(data.payload[5:]) == LARGE
    assert trailers.flags & END_STREAM
    assert not server.connection.streams


@pytest.mark.parametrize("size", [0, 1, 1000, 10_000])
def test_what_would_not_be_smaller_goes_out_as_it_is(server: ServerHarness, size: int) -> None:
    body = os.urandom(size)
    ask(server, "/test/Hold")
    server.calls[0].reply_parts([body[:500], body[500:]], (("more", "yes"),))
    if server.deflations:
        server.compress_waiting()
    (data,) = (each for each in server.sent_frames() if each.kind == DATA)
    assert data.payload == message(body)
    assert not server.connection.streams


def test_messages_keep_their_order(server: ServerHarness) -> None:
    ask(server, "/test/Raw")
    (call,) = server.calls
    for body in (b"first", LARGE, b"third", LARGE[1:], b"last"):
        call.send(body)
    call.finish(Status.INTERNAL, "the end")
    call.send(b"behind the end")
    assert messages(server) == [b"first"]
    (deflating,) = server.deflations
    for body in (LARGE, b"third", LARGE[1:], b"last"):
        assert deflating.waiting
        server.compress_waiting()
        assert messages(server) == [body]
    assert not server.connection.streams


def test_a_stream_is_writable_when_nothing_waits(server: ServerHarness) -> None:
    ask(server, "/test/Raw")
    (call,) = server.calls
    server.events.clear()
    for body in (LARGE * 4, LARGE):
        call.send(body)
    server.compress_waiting()
    server.sent_frames()
    assert server.events == []
    server.compress_waiting()
    server.sent_frames()
    assert server.events == ["writable"]
    assert call.buffered_bytes == 0


@pytest.mark.parametrize("done", [False, True])
def test_a_reset_drops_what_waits(server: ServerHarness, done: bool) -> None:
    ask(server, "/test/Hold")
    (call,) = server.calls
    if done:
        call.reply(LARGE)
    else:
        call.send(LARGE)
    server.feed(frame(RST, 0, 1, Code.CANCEL.to_bytes(4)))
    assert server.events == ([] if done else ["cancelled"])
    (deflating,) = server.deflations
    assert deflating.begin_deflation() is None
    assert deflating.buffered_bytes == 0
    assert [each.kind for each in server.sent_frames()] == [HEADERS]


def test_a_lost_connection_drops_what_waits(server: ServerHarness) -> None:
    ask(server, "/test/Hold")
    server.calls[0].reply(LARGE)
    server.connection.connection_lost()
    assert not server.deflations[0].waiting


def test_a_message_that_was_inflated_drops_nothing() -> None:
    server = ServerHarness(compression="low", defer_compression=True, defer_inflation=True)
    headers = server.headers(1, to("/test/Raw", ACCEPTS_GZIP, ("grpc-encoding", "gzip")))
    server.feed(headers)
    server.calls[0].send(LARGE)
    server.feed(frame(DATA, 0, 1, message(gzip.compress(bytes(100_000)), 1)))
    server.finish_inflation()
    assert server.deflations[0].waiting
