"""Windows and sockets that are full: what the server's connection sends and lets in."""

from __future__ import annotations

from nereid.rpc.http2.frames import PREFACE, Code
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.connection_harness import ServerHarness, connection_error
from tests.support.rpc.http2_frames import (
    DATA,
    END_STREAM,
    HEADERS,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    message,
    settings,
    to,
    window,
)


def test_a_response_waits_for_the_streams_window() -> None:
    server = ServerHarness(greet=False)
    server.feed(PREFACE + settings(window=10))
    server.sent_frames()
    server.feed(server.request(1, b"0123456789"))
    frames = server.sent_frames()
    assert [each.kind for each in frames] == [HEADERS, DATA]
    assert frames[1].payload == message(b"0123456789")[:10]
    assert server.calls[0].buffered_bytes == 5
    server.feed(window(1, 2))
    assert server.one(DATA).payload == b"56"
    server.feed(settings(window=20))
    frames = [each for each in server.sent_frames() if each.kind != SETTINGS]
    assert [each.kind for each in frames] == [DATA, HEADERS]
    assert frames[0].payload == b"789"
    assert not server.connection.streams


def test_responses_wait_for_the_connections_window_and_take_turns(server: ServerHarness) -> None:
    server.feed(settings(window=200_000))
    for stream in (1, 3):
        server.feed(server.request(stream, path="/test/Hold"))
    server.sent_frames()
    for call in server.calls:
        call.reply(bytes(100_000))
    sent = [each.stream for each in server.sent_frames() if each.kind == DATA]
    assert sent[:4] == [1, 3, 1, 3]
    assert server.http2.sender.send_window == 0
    server.feed(window(0, 300_000))
    frames = server.sent_frames()
    assert [each.fields["grpc-status"] for each in frames if each.kind == HEADERS] == ["0", "0"]
    assert sum(len(each.payload) for each in frames if each.kind == DATA) == 200_010 - 65_535


def test_a_window_that_shrinks_below_nothing(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.calls[0].send(bytes(60_000))
    server.calls[0].send(bytes(60_000))
    server.feed(settings(window=0))
    assert [each for each in server.sent_frames() if each.kind == DATA] == []
    server.feed(settings(window=65_535))
    assert [each for each in server.sent_frames() if each.kind == DATA] != []
    server.feed(settings(window=0))
    server.sent_frames()
    assert server.calls[0].buffered_bytes > 0
    server.feed(window(0, 1 << 20), window(1, 40_000))
    assert [each for each in server.sent_frames() if each.kind == DATA] == []
    server.feed(window(1, 100_000))
    server.sent_frames()
    assert server.calls[0].buffered_bytes == 0
    assert server.events == ["writable", "writable"]


def test_writable_comes_at_the_low_water_mark(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.calls[0].send(bytes(200_000))
    server.sent_frames()
    assert server.events == []
    server.feed(window(0, 1 << 20), window(1, 80_000))
    server.sent_frames()
    assert server.events == ["writable"]


def test_a_blocked_socket_holds_messages_back(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.http2.sender.set_blocked(True)
    server.calls[0].send(b"x")
    assert [each.kind for each in server.sent_frames()] == [HEADERS]
    woken: list[int] = []
    server.http2.sender.wake = lambda: woken.append(1)
    server.http2.sender.set_blocked(False)
    assert woken
    assert server.one(DATA).payload == message(b"x")


def test_one_batch_of_output_is_bounded(server: ServerHarness) -> None:
    server.feed(settings(window=1 << 30), window(0, 1 << 30), server.headers(1, to("/test/Raw")))
    server.calls[0].send(bytes(5_000_000))
    assert sum(map(len, server.http2.data_to_send())) < 400_000


def test_windows_are_given_back_when_half_used() -> None:
    server = ServerHarness(Limits(stream_window_bytes=70_000, connection_window_bytes=100_000))
    server.feed(server.headers(1, to("/test/Raw")))
    server.feed(frame(DATA, 0, 1, message(bytes(30_000))))
    assert server.sent_frames() == []
    server.feed(frame(DATA, 0, 1, message(bytes(30_000))))
    updates = {each.stream: each.number for each in server.sent_frames()}
    assert updates == {0: 60_010, 1: 60_010}


def test_a_paused_stream_gives_nothing_back() -> None:
    server = ServerHarness(Limits(stream_window_bytes=70_000))
    server.feed(server.headers(1, to("/test/Raw")))
    call = server.calls[0]
    call.pause()
    server.feed(frame(DATA, 0, 1, message(bytes(60_000))))
    assert server.sent_frames() == []
    call.resume()
    call.resume()
    assert server.one(WINDOW).number == 60_005
    server.feed(frame(DATA, END_STREAM, 1))
    call.pause()
    call.resume()
    assert server.sent_frames() == []


def test_a_stream_that_overruns_its_window() -> None:
    server = ServerHarness(Limits(stream_window_bytes=70_000))
    server.feed(server.headers(1, to("/test/Raw")))
    server.calls[0].pause()
    server.feed(frame(DATA, 0, 1, message(bytes(80_000))))
    reset = server.one(RST)
    assert reset.number == Code.FLOW_CONTROL_ERROR
    assert server.events == ["cancelled"]


def test_a_connection_that_overruns_its_window() -> None:
    server = ServerHarness(Limits(connection_window_bytes=70_000))
    server.feed(server.headers(1, to("/test/Raw")))
    server.feed(frame(DATA, 0, 1, message(bytes(80_000))))
    assert connection_error(server) == Code.FLOW_CONTROL_ERROR


def test_a_peer_without_a_table(server: ServerHarness) -> None:
    """After the peer shrank its table, the next block must say so (RFC 7541 4.2)."""
    server.feed(server.headers(5, to("/test/Raw")), settings(table=0), settings(table=0))
    server.sent_frames()
    server.reader.decoder.max_allowed_table_size = 0
    server.calls[0].send(b"x")
    server.calls[0].finish()
    server.feed(server.request(7), server.request(9))
    frames = server.sent_frames()
    heads = [each for each in frames if each.kind == HEADERS]
    assert [each.payload[:1] == b"\x20" for each in heads] == [True] + [False] * (len(heads) - 1)
    assert server.http2.sender.max_direct_bytes > 0


def test_larger_frames(server: ServerHarness) -> None:
    server.feed(settings(frame=100_000, window=1 << 20), window(0, 1 << 20))
    server.feed(server.request(1, bytes(90_000)))
    assert [each.kind for each in server.sent_frames() if each.kind == DATA] == [DATA]
