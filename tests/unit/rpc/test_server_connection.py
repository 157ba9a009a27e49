"""The server's connection, frame by frame: what it answers, what it refuses, and what ends what."""

from __future__ import annotations

import gzip
import struct

import pytest

from nereid.rpc import RpcError, Status
from nereid.rpc.control import Limits
from nereid.rpc.wire import PREFACE, Code
from tests.unit.rpc.frames_of import (
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
    Side,
    frame,
    message,
    settings,
    to,
    window,
)


@pytest.fixture
def side() -> Side:
    return Side()


def answer_of(side: Side, stream: int = 1) -> bytes:
    """The one message answered on a stream that ended well."""
    frames = [each for each in side.take() if each.stream == stream]
    assert [each.kind for each in frames[:1] + frames[-1:]] == [HEADERS, HEADERS]
    assert frames[0].fields == {":status": "200", "content-type": "application/grpc"}
    assert frames[-1].fields == {"grpc-status": "0"}
    assert frames[-1].flags == END_HEADERS | END_STREAM
    data = b"".join(each.payload for each in frames if each.kind == DATA)
    assert data[:5] == struct.pack(">BI", 0, len(data) - 5)
    return data[5:]


def failed(side: Side) -> GoAway:
    """The connection gave up, and says nothing more."""
    last = side.one(GOAWAY)
    assert side.connection.dead is not None
    side.give(frame(PING, payload=bytes(8)))
    assert side.take() == []
    return GoAway(Code(last.code))


class GoAway:
    """For readable asserts."""

    def __init__(self, code: Code) -> None:
        self.code = code


# --- the good ways


def test_the_opening() -> None:
    side = Side(Limits(max_concurrent_streams=7, connection_window_bytes=100_000), greet=False)
    first, second = side.take()
    values = dict(struct.iter_unpack(">HI", first.payload))
    assert first.kind == SETTINGS
    assert values == {3: 7, 4: 1 << 20, 5: 1 << 18, 6: 16_384}
    assert (second.kind, second.number) == (WINDOW, 100_000 - 65_535)
    side.give(PREFACE[:5], PREFACE[5:] + settings(streams=5, list=9)[:3])
    assert not side.connection.settled
    side.give(settings(streams=5, list=9)[3:])
    assert side.connection.settled
    assert side.one(SETTINGS).flags == ACK
    side.give(frame(SETTINGS, ACK))
    assert side.take() == []


def test_a_request_is_answered_in_three_frames(side: Side) -> None:
    side.give(side.request(1, b"hello"))
    frames = side.take()
    assert [each.kind for each in frames] == [HEADERS, DATA, HEADERS]
    assert not side.connection.streams
    side.give(side.request(3, b"again"))
    assert answer_of(side, 3) == b"again"


def test_a_request_byte_by_byte(side: Side) -> None:
    stream = side.request(1, b"hello") + side.request(3, b"")
    for at in range(len(stream)):
        side.give(stream[at : at + 1])
    frames = side.take()
    assert [each.payload[5:] for each in frames if each.kind == DATA] == [b"hello", b""]


def test_the_message_and_the_end_apart(side: Side) -> None:
    side.give(side.headers(1), frame(DATA, 0, 1, message(b"x")))
    assert side.take() == []
    side.give(frame(DATA, END_STREAM, 1))
    assert answer_of(side) == b"x"


def test_a_message_in_several_frames(side: Side) -> None:
    body = bytes(range(256)) * 300
    data = message(body)
    side.give(side.headers(1))
    for at in range(0, len(data), 10_000):
        side.give(frame(DATA, 0, 1, data[at : at + 10_000]))
    side.give(window(0, 100_000), window(1, 100_000), frame(DATA, END_STREAM, 1))
    assert answer_of(side) == body


def test_padding_priority_and_unknown_frames(side: Side) -> None:
    block = side.encoder.encode(REQUEST)
    side.give(
        frame(0x77, 0xFF, 9, b"whatever"),
        frame(PRIORITY, 0, 5, b"\x00\x00\x00\x00\x01"),
        frame(
            HEADERS,
            END_HEADERS | PADDED | PRIORITISED,
            1,
            b"\x03" + b"\x00\x00\x00\x03\x10" + block + bytes(3),
        ),
        frame(DATA, PADDED, 1, b"\x04" + message(b"pad") + bytes(4)),
        frame(DATA, PADDED | END_STREAM, 1, b"\x02" + bytes(2)),
    )
    assert answer_of(side) == b"pad"


def test_a_block_in_pieces(side: Side) -> None:
    block = side.encoder.encode(REQUEST)
    side.give(
        frame(HEADERS, 0, 1, block[:5]),
        frame(CONTINUATION, 0, 1, block[5:9]),
        frame(CONTINUATION, END_HEADERS, 1, block[9:]),
        frame(DATA, END_STREAM, 1, message(b"x")),
    )
    assert answer_of(side) == b"x"


def test_trailers_of_a_request(side: Side) -> None:
    side.give(
        side.headers(1),
        frame(DATA, 0, 1, message(b"x")),
        side.headers(1, [("checksum", "1")], END_HEADERS | END_STREAM),
    )
    assert answer_of(side) == b"x"


def test_a_compressed_message(side: Side) -> None:
    fields = [*REQUEST, ("grpc-encoding", "gzip")]
    data = message(gzip.compress(b"squeezed"), 1)
    side.give(side.headers(1, fields), frame(DATA, END_STREAM, 1, data))
    assert answer_of(side, 1) == b"squeezed"
    side.give(side.headers(3, fields))
    for at in range(len(data)):
        side.give(frame(DATA, 0, 3, data[at : at + 1]))
    side.give(frame(DATA, END_STREAM, 3))
    assert answer_of(side, 3) == b"squeezed"


def test_pings_are_echoed(side: Side) -> None:
    side.give(frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b"87654321"))
    ping = side.one(PING)
    assert (ping.flags, ping.payload) == (ACK, b"12345678")


def test_a_stream_of_messages(side: Side) -> None:
    side.give(side.headers(1, to("/test/Chat")), frame(DATA, 0, 1, message(b"a") + message(b"b")))
    assert [each.payload[5:] for each in side.take() if each.kind == DATA] == [b"a", b"b"]
    side.give(frame(DATA, END_STREAM, 1))
    assert side.one(HEADERS).fields == {"grpc-status": "0"}
    assert not side.connection.streams


def test_a_stream_without_a_request(side: Side) -> None:
    side.give(side.headers(1, to("/test/Chat"), END_HEADERS | END_STREAM))
    trailers = side.one(HEADERS)
    assert trailers.fields["grpc-status"] == "0"
    assert trailers.fields[":status"] == "200"


def test_an_answer_before_the_request_is_complete(side: Side) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    side.calls[0].finish(Status.ABORTED, "enough")
    frames = side.take()
    assert frames[0].fields["grpc-message"] == "enough"
    assert (frames[1].kind, frames[1].number) == (RST, Code.NO_ERROR)
    side.give(frame(DATA, 0, 1, message(b"late")), frame(DATA, END_STREAM, 1))
    assert side.take() == []
    assert side.events == []
    side.give(side.headers(1, [("late", "trailers")], END_HEADERS | END_STREAM))
    assert side.connection.dead is None


def test_coroutines_are_handed_on(side: Side) -> None:
    side.give(side.request(1, b"x", "/test/Later"))
    assert side.events == [("/test/Later", b"x")]


# --- errors of calls


def statuses(side: Side) -> list[str]:
    return [each.fields["grpc-status"] for each in side.take() if "grpc-status" in each.fields]


def test_handlers_that_fail(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    side.give(side.request(1, path="/test/Fail"))
    trailers = side.one(HEADERS).fields
    assert trailers["grpc-status"] == "13"
    assert trailers["grpc-message"] == "internal error"
    assert "secret" in caplog.text
    side.give(side.headers(3, to("/test/Raw")))

    def on_message(body: bytes) -> None:
        raise RpcError(Status.DATA_LOSS, "gone", [("k", "v")])

    side.calls[-1].on_message = on_message
    side.give(frame(DATA, 0, 3, message(b"x")))
    fields = next(each.fields for each in side.take() if each.kind == HEADERS)
    assert fields["grpc-status"] == "15"
    assert fields["k"] == "v"


def test_trailers_that_cannot_be_sent_do_not_keep_the_answer(
    side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    side.give(side.request(1, path="/test/Hold"))
    side.calls[0].fail(Status.ABORTED, "x", [("Bad Key", "v")])
    assert statuses(side) == ["10"]
    assert "cannot be sent" in caplog.text


def test_wrong_numbers_of_messages(side: Side) -> None:
    side.give(side.headers(1, flags=END_HEADERS | END_STREAM))
    side.give(side.headers(3), frame(DATA, 0, 3, message(b"a") + message(b"b")))
    side.give(side.headers(5), frame(DATA, END_STREAM, 5))
    assert statuses(side) == ["12", "12", "12"]


def test_bad_messages(side: Side) -> None:
    side.give(side.headers(1), frame(DATA, END_STREAM, 1, message(b"cut off")[:-1]))
    side.give(side.headers(3), frame(DATA, END_STREAM, 3, message(b"flag", 2)))
    side.give(side.headers(5), frame(DATA, END_STREAM, 5, message(b"unannounced", 1)))
    assert statuses(side) == ["13", "13", "13"]
    assert not side.connection.streams


def test_messages_too_large() -> None:
    side = Side(Limits(max_message_bytes=10))
    side.give(side.headers(1), frame(DATA, 0, 1, message(bytes(11))[:5]))
    side.give(side.headers(3), frame(DATA, END_STREAM, 3, message(bytes(11))))
    assert statuses(side) == ["8", "8"]
    side.give(side.request(5, bytes(10)))
    assert answer_of(side, 5) == bytes(10)


def test_refusals_by_http_status(side: Side) -> None:
    wrong = [("content-type", "text/plain") if k == "content-type" else (k, v) for k, v in REQUEST]
    side.give(side.headers(1, wrong, END_HEADERS | END_STREAM))
    fields = side.one(HEADERS).fields
    assert fields[":status"] == "415"
    assert fields["grpc-status"] == "2"
    side.give(side.headers(3, to("/test/None")))
    assert statuses(side) == ["12"]


def test_answers_after_the_answer_are_silent(side: Side) -> None:
    side.give(side.request(1, path="/test/Hold"))
    call = side.calls[0]
    call.reply(b"x")
    side.take()
    call.reply(b"y")
    call.send(b"z")
    call.accept()
    call.finish()
    call.fail(Status.ABORTED, "")
    assert call.done
    assert side.take() == []


# --- deadlines and cancellation


def test_a_deadline_answers_and_cancels(side: Side) -> None:
    armed: list[float | None] = []
    side.service.arm = lambda: armed.append(side.deadlines.next_due())
    side.give(
        side.headers(1, to("/test/Hold", ("grpc-timeout", "2S"))),
        frame(DATA, END_STREAM, 1, message(b"")),
    )
    call = side.calls[0]
    assert call.deadline == 1002.0
    assert armed == [pytest.approx(1002.01)]
    for each in side.deadlines.expire(1003):
        each.expire()
        each.expire()
    assert side.events == ["cancelled"]
    assert statuses(side) == ["4"]


def test_an_answer_in_time_leaves_no_deadline(side: Side) -> None:
    for stream, path in ((1, "/test/Echo"), (3, "/test/Fail")):
        side.give(
            side.headers(stream, to(path, ("grpc-timeout", "2S"))),
            frame(DATA, END_STREAM, stream, message(b"")),
        )
    assert side.deadlines.expire(1e9) == []


def test_the_peer_resets(side: Side) -> None:
    side.give(side.request(1, path="/test/Hold"), frame(RST, 0, 1, bytes(4)))
    assert side.events == ["cancelled"]
    assert side.calls[0].done
    side.give(frame(RST, 0, 1, bytes(4)))
    assert side.events == ["cancelled"]


def test_the_connection_is_lost(side: Side) -> None:
    side.give(side.request(1, path="/test/Hold"), side.headers(3, to("/test/Raw")))
    side.connection.lost_calls()
    assert side.events == ["cancelled", "cancelled"]
    assert side.take() == []
    side.give(side.request(5))
    assert side.take() == []


def test_a_failing_on_cancel_harms_nobody(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    side.give(side.request(1, path="/test/Hold"))

    def on_cancel() -> None:
        raise ValueError("oops")

    side.calls[0].on_cancel = on_cancel
    side.give(frame(RST, 0, 1, bytes(4)), side.request(3))
    assert answer_of(side, 3) == b"hi"
    assert "oops" in caplog.text


# --- flow control


def test_an_answer_waits_for_the_streams_window() -> None:
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


def test_answers_wait_for_the_connections_window_and_take_turns(side: Side) -> None:
    side.give(settings(window=200_000))
    for stream in (1, 3):
        side.give(side.request(stream, path="/test/Hold"))
    side.take()
    for call in side.calls:
        call.reply(bytes(100_000))
    sent = [each.stream for each in side.take() if each.kind == DATA]
    assert sent[:4] == [1, 3, 1, 3]
    assert side.connection.send_window == 0
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
    side.connection.set_blocked(True)
    side.calls[0].send(b"x")
    assert [each.kind for each in side.take()] == [HEADERS]
    woken: list[int] = []
    side.connection.wake = lambda: woken.append(1)
    side.connection.set_blocked(False)
    assert woken
    assert side.one(DATA).payload == message(b"x")


def test_one_take_is_bounded(side: Side) -> None:
    side.give(settings(window=1 << 30), window(0, 1 << 30), side.headers(1, to("/test/Raw")))
    side.calls[0].send(bytes(5_000_000))
    assert sum(map(len, side.connection.take())) < 400_000


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
    assert failed(side).code == Code.FLOW_CONTROL_ERROR


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
    assert side.connection.quick_bytes > 0


def test_larger_frames(side: Side) -> None:
    side.give(settings(frame=100_000, window=1 << 20), window(0, 1 << 20))
    side.give(side.request(1, bytes(90_000)))
    assert [each.kind for each in side.take() if each.kind == DATA] == [DATA]


# --- leaving


def test_drain_in_two_steps(side: Side) -> None:
    side.give(side.request(1, path="/test/Hold"))
    side.connection.start_drain()
    side.connection.start_drain()
    goaway, ping = side.take()
    assert int.from_bytes(goaway.payload[:4]) == (1 << 31) - 1
    side.give(side.request(3))
    assert answer_of(side, 3) == b"hi"
    side.give(frame(PING, ACK, 0, ping.payload))
    last = side.one(GOAWAY)
    assert int.from_bytes(last.payload[:4]) == 3
    side.give(side.request(5))
    assert side.one(RST).number == Code.REFUSED_STREAM
    side.connection.finish_drain()
    side.calls[0].reply(b"done")
    assert answer_of(side, 1) == b"done"


def test_a_client_that_leaves(side: Side) -> None:
    side.give(frame(GOAWAY, 0, 0, bytes(8) + b"bye"), side.request(1))
    assert answer_of(side) == b"hi"


def test_streams_beyond_the_limit() -> None:
    side = Side(Limits(max_concurrent_streams=1))
    side.give(side.request(1, path="/test/Hold"), side.request(3))
    assert side.one(RST).number == Code.REFUSED_STREAM
    side.calls[0].reply(b"x")
    side.take()
    side.give(side.request(5))
    assert answer_of(side, 5) == b"hi"


# --- keepalive and floods


def test_keepalive() -> None:
    side = Side(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    connection = side.connection
    assert connection.tick(1)
    assert connection.tick(10)
    assert side.take() == []
    assert connection.tick(11)
    assert side.one(PING).flags == 0
    assert connection.tick(15)
    side.give(frame(PING, ACK, 0, bytes(8)))
    assert connection.tick(16.1)
    assert connection.tick(26.2)
    assert side.one(PING)
    assert connection.tick(29)
    assert connection.tick(31)
    assert not connection.tick(31.3)


def test_idle_clients_are_left_alone_where_only_calls_are_worth_a_ping() -> None:
    limits = Limits(keepalive_interval_s=10, keepalive_timeout_s=5, keepalive_without_calls=False)
    side = Side(limits)
    for now in (1, 12, 40):
        assert side.connection.tick(now)
    assert side.take() == []


def test_a_process_that_stood_still_blames_nobody() -> None:
    side = Side(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    connection = side.connection
    for now in (1, 2, 12):
        assert connection.tick(now)
    assert side.one(PING)
    # A minute passes unnoticed; the answer is in the socket, but timers come first.
    assert connection.tick(72)
    assert connection.tick(75)
    assert not connection.tick(77.1)


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS),
        frame(SETTINGS, ACK),
        frame(PRIORITY, 0, 1, b"\x00\x00\x00\x00\x01"),
        frame(0x55),
        frame(GOAWAY, 0, 0, bytes(8)),
    ],
)
def test_floods(side: Side, flood: bytes) -> None:
    side.give(flood * 900)
    assert side.connection.dead is None
    side.connection.tick(1)
    side.connection.tick(2)
    side.give(flood * 500)
    assert side.connection.dead is None
    side.give(flood * 700)
    assert side.connection.dead is not None
    assert side.connection.dead.code == Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("flags", [0, PADDED])
def test_empty_data_floods(side: Side, flags: int) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    side.give(frame(DATA, flags, 1, b"\x00" if flags else b"") * 1100)
    assert failed(side).code == Code.ENHANCE_YOUR_CALM


def test_rapid_resets(side: Side) -> None:
    for stream in range(1, 12_000, 2):
        side.give(side.request(stream, path="/test/Hold"), frame(RST, 0, stream, bytes(4)))
        if side.connection.dead is not None:
            break
    assert side.connection.dead is not None
    assert side.connection.dead.code == Code.ENHANCE_YOUR_CALM
    assert 3000 < stream // 2 < 5000


def test_answers_that_are_not_read(side: Side) -> None:
    side.connection.set_blocked(True)
    for stream in range(1, 100_000, 2):
        side.give(side.request(stream, path="/test/" + "x" * 3000))
        if side.connection.dead is not None:
            break
    assert side.connection.dead is not None
    assert side.connection.dead.code == Code.ENHANCE_YOUR_CALM


def test_header_bombs() -> None:
    side = Side(Limits(max_header_list_bytes=2000))
    side.give(side.headers(1, [*REQUEST, ("x", "y" * 1000)]))
    bomb = side.encoder.encode([*REQUEST, *[("x", "y" * 1000)] * 200])
    assert len(bomb) < 300
    side.give(frame(HEADERS, END_HEADERS | END_STREAM, 3, bomb))
    assert "8" in statuses(side)
    for stream in range(5, 1000, 2):
        side.give(frame(HEADERS, END_HEADERS | END_STREAM, stream, bomb))
    assert side.connection.dead is not None


# --- errors of streams


def reset_of(side: Side) -> Code:
    reset = side.one(RST)
    assert side.connection.dead is None
    side.give(side.request(99))
    assert answer_of(side, 99) == b"hi"
    return Code(reset.number)


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (window(1, 0), Code.PROTOCOL_ERROR),
        (window(1, (1 << 31) - 1), Code.FLOW_CONTROL_ERROR),
        (frame(PRIORITY, 0, 1, b"1234"), Code.FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 1, b"\x00\x00\x00\x01\x01"), Code.PROTOCOL_ERROR),
    ],
)
def test_stream_errors(side: Side, attack: bytes, code: Code) -> None:
    side.give(side.request(1, path="/test/Hold"), attack)
    assert reset_of(side) == code
    assert side.events == ["cancelled"]


def test_malformed_heads_and_trailers(side: Side) -> None:
    side.give(side.headers(1, REQUEST[1:]))
    assert reset_of(side) == Code.PROTOCOL_ERROR
    side = Side()
    side.give(side.headers(1), side.headers(1, [("a", "b")]))
    assert reset_of(side) == Code.PROTOCOL_ERROR
    side = Side()
    side.give(
        side.request(1, path="/test/Hold"), side.headers(1, [("a", "b")], END_HEADERS | END_STREAM)
    )
    assert reset_of(side) == Code.STREAM_CLOSED


def test_content_length(side: Side) -> None:
    fields = [*REQUEST, ("content-length", "8")]
    side.give(side.headers(1, fields), frame(DATA, END_STREAM, 1, message(b"123")))
    assert answer_of(side) == b"123"
    side.give(side.headers(3, fields), frame(DATA, END_STREAM, 3, message(b"1234")))
    assert side.one(RST).number == Code.PROTOCOL_ERROR
    side.give(side.headers(5, fields, END_HEADERS | END_STREAM))
    assert reset_of(side) == Code.PROTOCOL_ERROR


def test_data_on_closed_streams(side: Side) -> None:
    side.give(side.request(1), frame(DATA, 0, 1, b"more"))
    assert answer_of_and_reset(side) == Code.STREAM_CLOSED
    side.give(side.request(3, path="/test/Hold"), frame(DATA, 0, 3, b"more"))
    assert reset_of(side) == Code.STREAM_CLOSED


def answer_of_and_reset(side: Side) -> Code:
    return Code(next(each.number for each in side.take() if each.kind == RST))


def test_data_goes_on_after_a_reset_in_the_middle_of_a_frame(side: Side) -> None:
    side.give(side.headers(1, to("/test/Raw")))
    data = frame(DATA, END_STREAM, 1, message(b"a") + message(bytes(100)))
    side.calls[0].on_message = lambda _: side.calls[0].finish()
    side.give(data[:20], data[20:60], data[60:], side.request(3))
    assert [each.payload[5:] for each in side.take() if each.kind == DATA] == [b"hi"]


def test_messages_after_the_end_of_the_handlers_side_wait_for_nobody(side: Side) -> None:
    """The answer waits for a window; what the client still says is ignored."""
    side.give(settings(window=0), side.headers(1, to("/test/Raw")))
    side.calls[0].send(b"x")
    side.calls[0].finish()
    side.give(frame(DATA, 0, 1, message(b"ignored")), frame(DATA, END_STREAM, 1))
    assert side.events == []
    side.give(window(1, 100))
    assert statuses(side) == ["0"]
    assert not side.connection.streams


def test_window_updates_for_closed_streams_are_late_not_wrong(side: Side) -> None:
    side.give(side.request(1), window(1, 5), frame(RST, 0, 1, bytes(4)), side.request(3))
    assert side.connection.dead is None


# --- errors of connections

REQUEST_BLOCK = b"\x83\x86\x84"
CONNECTION_ERRORS: dict[str, tuple[bytes, Code]] = {
    "oversized frame": (struct.pack(">I", (1 << 18) + 1)[1:] + bytes(6), Code.FRAME_SIZE_ERROR),
    "large control frame": (frame(PING, payload=bytes(20_000)), Code.ENHANCE_YOUR_CALM),
    "large header frame": (frame(HEADERS, 0, 1, bytes(40_000))[:9], Code.ENHANCE_YOUR_CALM),
    "ping on a stream": (frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "ping of 7": (frame(PING, payload=bytes(7)), Code.FRAME_SIZE_ERROR),
    "settings on a stream": (frame(SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
    "settings of 5": (frame(SETTINGS, payload=bytes(5)), Code.FRAME_SIZE_ERROR),
    "settings ack of 6": (frame(SETTINGS, ACK, payload=bytes(6)), Code.FRAME_SIZE_ERROR),
    "push setting": (settings(push=2), Code.PROTOCOL_ERROR),
    "window setting": (settings(window=1 << 31), Code.FLOW_CONTROL_ERROR),
    "small frame setting": (settings(frame=16_383), Code.PROTOCOL_ERROR),
    "large frame setting": (settings(frame=1 << 24), Code.PROTOCOL_ERROR),
    "goaway on a stream": (frame(GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "goaway of 7": (frame(GOAWAY, payload=bytes(7)), Code.FRAME_SIZE_ERROR),
    "push promise": (frame(PUSH, END_HEADERS, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "window of 3": (frame(WINDOW, payload=bytes(3)), Code.FRAME_SIZE_ERROR),
    "window of zero": (window(0, 0), Code.PROTOCOL_ERROR),
    "window overflow": (window(0, (1 << 31) - 1), Code.FLOW_CONTROL_ERROR),
    "window on idle": (window(7, 1), Code.PROTOCOL_ERROR),
    "reset of 3": (frame(RST, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
    "reset on 0": (frame(RST, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
    "reset on idle": (frame(RST, 0, 7, bytes(4)), Code.PROTOCOL_ERROR),
    "priority on 0": (frame(PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
    "data on 0": (frame(DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "data on idle": (frame(DATA, 0, 7, b"x"), Code.PROTOCOL_ERROR),
    "data padding": (frame(DATA, PADDED, 1, b"\x05abcd"), Code.PROTOCOL_ERROR),
    "data padding of none": (frame(DATA, PADDED, 1), Code.PROTOCOL_ERROR),
    "headers padding": (frame(HEADERS, PADDED | 4, 1, b"\x09abcd"), Code.PROTOCOL_ERROR),
    "headers padding of none": (frame(HEADERS, PADDED | 4, 1), Code.PROTOCOL_ERROR),
    "headers priority": (frame(HEADERS, PRIORITISED | 4, 1, b"abcd"), Code.FRAME_SIZE_ERROR),
    "depends on itself": (
        frame(HEADERS, PRIORITISED | 4, 1, b"\x00\x00\x00\x01\x00"),
        Code.PROTOCOL_ERROR,
    ),
    "headers on 0": (frame(HEADERS, END_HEADERS, 0, REQUEST_BLOCK), Code.PROTOCOL_ERROR),
    "headers in pieces on 0": (frame(HEADERS, 0, 0, REQUEST_BLOCK), Code.PROTOCOL_ERROR),
    "headers on even": (frame(HEADERS, END_HEADERS, 2, REQUEST_BLOCK), Code.PROTOCOL_ERROR),
    "damaged block": (frame(HEADERS, END_HEADERS, 1, b"\xbf"), Code.COMPRESSION_ERROR),
    "continuation alone": (frame(CONTINUATION, 4, 1), Code.PROTOCOL_ERROR),
    "continuation elsewhere": (
        frame(HEADERS, 0, 1, REQUEST_BLOCK) + frame(CONTINUATION, 4, 3),
        Code.PROTOCOL_ERROR,
    ),
    "data in a block": (
        frame(HEADERS, 0, 1, REQUEST_BLOCK) + frame(DATA, 0, 1, b"x"),
        Code.PROTOCOL_ERROR,
    ),
    "headers in a block": (
        frame(HEADERS, 0, 1, REQUEST_BLOCK) + frame(HEADERS, 4, 3, REQUEST_BLOCK),
        Code.PROTOCOL_ERROR,
    ),
    "continuation flood": (
        frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 100,
        Code.ENHANCE_YOUR_CALM,
    ),
    "long continuation": (
        frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, bytes(20_000)) * 2,
        Code.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_connection_errors(name: str) -> None:
    attack, code = CONNECTION_ERRORS[name]
    side = Side().give(attack)
    assert failed(side).code == code


def test_a_window_setting_that_overflows_a_stream(side: Side) -> None:
    side.give(
        side.headers(1, to("/test/Raw")), window(1, (1 << 31) - 70_000), settings(window=99_999)
    )
    assert failed(side).code == Code.FLOW_CONTROL_ERROR


def test_headers_on_a_closed_stream(side: Side) -> None:
    side.give(side.request(5), side.request(3))
    assert failed(side).code == Code.STREAM_CLOSED


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", PREFACE[:-1] + b"x", b"\x16"])
def test_not_http2(start: bytes) -> None:
    side = Side(greet=False).give(start)
    assert failed(side).code == Code.PROTOCOL_ERROR


def test_settings_come_first() -> None:
    for first in (frame(PING, payload=bytes(8)), frame(SETTINGS, ACK), frame(DATA, 0, 1, b"x")):
        side = Side(greet=False).give(PREFACE + first)
        assert failed(side).code == Code.PROTOCOL_ERROR


def test_an_answer_in_the_middle_of_the_input(side: Side) -> None:
    """A handler that finishes on a message, whole or in pieces, hears no more of the same frame."""
    for stream, cut in ((1, 0), (3, 4)):
        side.give(side.headers(stream, to("/test/Raw")))
        side.calls[-1].on_message = lambda body: side.calls[-1].finish()
        data = message(b"a") + message(b"b")
        side.give(
            frame(DATA, 0, stream, data[:cut]) if cut else b"", frame(DATA, 0, stream, data[cut:])
        )
        side.give(frame(DATA, PADDED | END_STREAM, stream, b"\x00"))
    assert statuses(side) == ["0", "0"]
    assert side.events == []
    assert side.connection.dead is None
