"""Windows and sockets that are full: what the server's connection sends and lets in."""

from __future__ import annotations

from nereid.rpc.http2.frames import PREFACE, Code
from nereid.rpc.http2.limits import Limits
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
from tests.support.rpc.http2_peers import Side, failed


def test_an_response_waits_for_the_streams_window() -> None:
    side = Side(greet=False)
    side.give(PREFACE + settings(window=10))
    side.take()
    side.give(side.request(1, b"0123456789"))
    frames = side.take()
    assert [each.kind for each in frames] == [HEADERS, DATA]
    assert frames[1].payload == message(b"0123456789")[:10]
    assert side.calls[0].buffered_bytes == 5
    side.give(window(1, 2))
    assert side.one(DATA).payload == b"56"
    side.give(settings(window=20))
    frames = [each for each in side.take() if each.kind != SETTINGS]
    assert [each.kind for each in frames] == [DATA, HEADERS]
    assert frames[0].payload == b"789"
    assert not side.connection.streams


def test_responses_wait_for_the_connections_window_and_take_turns(side: Side) -> None:
    side.give(settings(window=200_000))
    for stream in (1, 3):
        side.give(side.request(stream, path="/test/Hold"))
    side.take()
    for call in side.calls:
        call.reply(bytes(100_000))
    sent = [each.stream for each in side.take() if each.kind == DATA]
    assert sent[:4] == [1, 3, 1, 3]
    assert side.http2.sender.send_window == 0
    side.give(window(0, 300_000))
    frames = side.take()
    assert [each.fields["grpc-status"] for each in frames if each.kind == HEADERS] == ["0", "0"]
    assert sum(len(each.payload) for each in frames if each.kind == DATA) == 200_010 - 65_535


def test_a_window_that_shrinks_below_nothing(side: Side) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    side.calls[0].send(bytes(60_000))
    side.calls[0].send(bytes(60_000))
    side.give(settings(window=0))
    assert [each for each in side.take() if each.kind == DATA] == []
    side.give(settings(window=65_535))
    assert [each for each in side.take() if each.kind == DATA] != []
    side.give(settings(window=0))
    side.take()
    assert side.calls[0].buffered_bytes > 0
    side.give(window(0, 1 << 20), window(1, 40_000))
    assert [each for each in side.take() if each.kind == DATA] == []
    side.give(window(1, 100_000))
    side.take()
    assert side.calls[0].buffered_bytes == 0
    assert side.events == ["writable", "writable"]


def test_writable_comes_at_the_low_water_mark(side: Side) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    side.calls[0].send(bytes(200_000))
    side.take()
    assert side.events == []
    side.give(window(0, 1 << 20), window(1, 80_000))
    side.take()
    assert side.events == ["writable"]


def test_a_blocked_socket_holds_messages_back(side: Side) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    side.http2.sender.set_blocked(True)
    side.calls[0].send(b"x")
    assert [each.kind for each in side.take()] == [HEADERS]
    woken: list[int] = []
    side.http2.sender.wake = lambda: woken.append(1)
    side.http2.sender.set_blocked(False)
    assert woken
    assert side.one(DATA).payload == message(b"x")


def test_one_take_is_bounded(side: Side) -> None:
    side.give(settings(window=1 << 30), window(0, 1 << 30), side.headers(1, to("/test/Raw")))
    side.calls[0].send(bytes(5_000_000))
    assert sum(map(len, side.http2.data_to_send())) < 400_000


def test_windows_are_given_back_when_half_used() -> None:
    side = Side(Limits(stream_window_bytes=70_000, connection_window_bytes=100_000))
    side.give(side.headers(1, to("/test/Raw")))
    side.give(frame(DATA, 0, 1, message(bytes(30_000))))
    assert side.take() == []
    side.give(frame(DATA, 0, 1, message(bytes(30_000))))
    updates = {each.stream: each.number for each in side.take()}
    assert updates == {0: 60_010, 1: 60_010}


def test_a_paused_stream_gives_nothing_back() -> None:
    side = Side(Limits(stream_window_bytes=70_000))
    side.give(side.headers(1, to("/test/Raw")))
    call = side.calls[0]
    call.pause()
    side.give(frame(DATA, 0, 1, message(bytes(60_000))))
    assert side.take() == []
    call.resume()
    call.resume()
    assert side.one(WINDOW).number == 60_005
    side.give(frame(DATA, END_STREAM, 1))
    call.pause()
    call.resume()
    assert side.take() == []


def test_a_stream_that_overruns_its_window() -> None:
    side = Side(Limits(stream_window_bytes=70_000))
    side.give(side.headers(1, to("/test/Raw")))
    side.calls[0].pause()
    side.give(frame(DATA, 0, 1, message(bytes(80_000))))
    reset = side.one(RST)
    assert reset.number == Code.FLOW_CONTROL_ERROR
    assert side.events == ["cancelled"]


def test_a_connection_that_overruns_its_window() -> None:
    side = Side(Limits(connection_window_bytes=70_000))
    side.give(side.headers(1, to("/test/Raw")))
    side.give(frame(DATA, 0, 1, message(bytes(80_000))))
    assert failed(side) == Code.FLOW_CONTROL_ERROR


def test_a_peer_without_a_table(side: Side) -> None:
    """Once told that the table shrank, the next block must say so (RFC 7541 4.2)."""
    side.give(side.headers(5, to("/test/Raw")), settings(table=0), settings(table=0))
    side.take()
    side.reader.decoder.max_allowed_table_size = 0
    side.calls[0].send(b"x")
    side.calls[0].finish()
    side.give(side.request(7), side.request(9))
    frames = side.take()
    heads = [each for each in frames if each.kind == HEADERS]
    assert [each.payload[:1] == b"\x20" for each in heads] == [True] + [False] * (len(heads) - 1)
    assert side.http2.sender.quick_bytes > 0


def test_larger_frames(side: Side) -> None:
    side.give(settings(frame=100_000, window=1 << 20), window(0, 1 << 20))
    side.give(side.request(1, bytes(90_000)))
    assert [each.kind for each in side.take() if each.kind == DATA] == [DATA]
