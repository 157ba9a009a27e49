"""Limits of the server's connection: silence, floods, and heads that are too large."""

from __future__ import annotations

import pytest

from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
from tests.support.forms import pure_only
from tests.support.rpc.connection_harness import ServerHarness, connection_error, statuses
from tests.support.rpc.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    REQUEST,
    RST,
    SETTINGS,
    frame,
    message,
    to,
    window,
)


def test_keepalive() -> None:
    server = ServerHarness(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    http2 = server.http2
    assert http2.on_timer(1)
    assert http2.on_timer(10)
    assert server.sent_frames() == []
    assert http2.on_timer(11)
    assert server.one(PING).flags == 0
    for now in (12, 13, 14, 15, 15.9):
        assert http2.on_timer(now)
    server.feed(frame(PING, ACK, 0, bytes(8)))
    assert http2.on_timer(16.1)
    assert http2.on_timer(26.2)
    assert server.one(PING)
    for now in (27, 28, 29, 30, 31):
        assert http2.on_timer(now)
    assert not http2.on_timer(31.3)


def test_idle_clients_are_left_alone_where_only_calls_are_worth_a_ping() -> None:
    limits = Limits(keepalive_interval_s=10, keepalive_timeout_s=5, keepalive_without_calls=False)
    server = ServerHarness(limits)
    for now in (1, 12, 40):
        assert server.http2.on_timer(now)
    assert server.sent_frames() == []


def test_a_process_that_was_suspended_gives_the_peer_time_to_reply() -> None:
    server = ServerHarness(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    http2 = server.http2
    for now in (1, 2, 12):
        assert http2.on_timer(now)
    assert server.one(PING)
    # Suspended for a minute; the reply is in the socket, but timers run first.
    for now in (72, 73, 74, 75):
        assert http2.on_timer(now)
    assert not http2.on_timer(76)


def test_a_process_that_lags_does_not_hold_its_own_pauses_against_the_peer() -> None:
    server = ServerHarness(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    http2 = server.http2
    # Each of the pauses counts for a quarter of the timeout.
    for now in (1, 12, 15, 18, 21):
        assert http2.on_timer(now)
    assert not http2.on_timer(24)


def test_a_connection_may_have_limits_of_its_own() -> None:
    server = ServerHarness(Limits(keepalive_interval_s=10, keepalive_timeout_s=5))
    http2 = server.http2
    http2.control.keepalive.set_limits(2, 1)
    for now in (1, 2, 3, 3.25, 3.5, 3.75):
        assert http2.on_timer(now)
    assert not http2.on_timer(4)
    http2.control.keepalive.set_limits(None, 0)
    for now in range(5, 50):
        assert http2.on_timer(now)


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
def test_floods(server: ServerHarness, flood: bytes) -> None:
    server.feed(flood * 900)
    assert server.http2.error is None
    server.http2.on_timer(1)
    server.http2.on_timer(2)
    server.feed(flood * 500)
    assert server.http2.error is None
    server.feed(flood * 700)
    assert server.http2.error is not None
    assert server.http2.error.code == Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("flags", [0, PADDED])
def test_empty_data_floods(server: ServerHarness, flags: int) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.feed(frame(DATA, flags, 1, b"\x00" if flags else b"") * 1100)
    assert connection_error(server) == Code.ENHANCE_YOUR_CALM


def test_rapid_resets(server: ServerHarness) -> None:
    for stream in range(1, 12_000, 2):
        server.feed(server.request(stream, path="/test/Hold"), frame(RST, 0, stream, bytes(4)))
        if server.http2.error is not None:
            break
    assert server.http2.error is not None
    assert server.http2.error.code == Code.ENHANCE_YOUR_CALM
    assert 3000 < stream // 2 < 5000


def test_responses_that_are_not_read(server: ServerHarness) -> None:
    server.http2.sender.set_blocked(True)
    for stream in range(1, 100_000, 2):
        server.feed(server.request(stream, path="/test/" + "x" * 3000))
        if server.http2.error is not None:
            break
    assert server.http2.error is not None
    assert server.http2.error.code == Code.ENHANCE_YOUR_CALM


def test_header_bombs() -> None:
    server = ServerHarness(Limits(max_header_list_bytes=2000))
    server.feed(server.headers(1, [*REQUEST, ("x", "y" * 1000)]))
    bomb = server.encoder.encode([*REQUEST, *[("x", "y" * 1000)] * 200])
    assert len(bomb) < 300
    server.feed(frame(HEADERS, END_HEADERS | END_STREAM, 3, bomb))
    assert "8" in statuses(server)
    for stream in range(5, 1000, 2):
        server.feed(frame(HEADERS, END_HEADERS | END_STREAM, stream, bomb))
    assert server.http2.error is not None


# --- work is charged


@pure_only
def test_of_repeated_settings_the_last_one_counts(server: ServerHarness) -> None:
    for stream in range(1, 201, 2):
        server.feed(server.headers(stream, to("/test/Hold")))
    walks = 0
    change = server.http2.sender.change_initial_window

    def counted(value: int) -> None:
        nonlocal walks
        walks += 1
        change(value)

    server.http2.sender.change_initial_window = counted  # type: ignore[method-assign]
    entries = b"".join(
        b"\x00\x04" + (100_000 + number).to_bytes(4) for number in range(16_384 // 6)
    )
    server.feed(frame(SETTINGS, 0, 0, entries))
    assert walks == 1
    assert server.http2.sender.peer_initial_window == 100_000 + 16_384 // 6 - 1
    assert {each.send_window for each in server.connection.streams.values()} == {102_729}
    server.feed(frame(SETTINGS, 0, 0, entries[-6:]))
    assert walks == 1


def test_changes_of_all_streams_windows_are_charged_by_their_number() -> None:
    def changes_until_the_end(streams: int) -> int:
        server = ServerHarness()
        for stream in range(1, 2 * streams, 2):
            server.feed(server.headers(stream, to("/test/Hold")))
        for number in range(2000):
            value = (70_000 + number % 2).to_bytes(4)
            server.feed(frame(SETTINGS, 0, 0, b"\x00\x04" + value))
            if server.http2.error is not None:
                return number
        return 2000

    assert changes_until_the_end(1) > 900
    assert changes_until_the_end(1000) < 100


@pytest.mark.parametrize("stream", [0, 1])
def test_window_updates_for_what_was_never_sent(server: ServerHarness, stream: int) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.feed(window(stream, 1) * 9000)
    assert server.http2.error is None
    server.feed(window(stream, 1) * 3000)
    assert connection_error(server) == Code.ENHANCE_YOUR_CALM


def test_window_updates_for_what_was_sent_are_free(server: ServerHarness) -> None:
    """A client that acknowledges every small message twice, at any rate."""
    server.feed(server.headers(1, to("/test/Chat")))
    small = message(bytes(30))
    for _ in range(30_000):
        server.feed(frame(DATA, 0, 1, small))
        server.sent_frames()
        server.feed(window(0, len(small)), window(1, len(small)))
    assert server.http2.error is None


def test_crumbs_of_messages(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    server.feed(frame(DATA, 0, 1, message(bytes(100_000))[:5]))
    server.feed(frame(DATA, 0, 1, b"x") * 6000)
    assert connection_error(server) == Code.ENHANCE_YOUR_CALM


def test_messages_in_a_few_pieces_each_are_free(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Raw")))
    small = message(bytes(30))
    for _ in range(10_000):
        server.feed(frame(DATA, 0, 1, small[:5]), frame(DATA, 0, 1, small[5:20]))
        server.feed(frame(DATA, 0, 1, small[20:]))
    large = message(bytes(10_000))
    for _ in range(200):
        for at in range(0, len(large), 300):
            server.feed(frame(DATA, 0, 1, large[at : at + 300]))
    assert len(server.events) == 10_200
    assert server.http2.error is None


def test_crumbs_behind_a_call_that_has_ended(server: ServerHarness) -> None:
    server.feed(server.headers(1, to("/test/Unknown")))
    server.feed(frame(DATA, 0, 1, b"x") * 6000)
    assert connection_error(server) == Code.ENHANCE_YOUR_CALM


def test_blocks_of_many_fields_are_charged() -> None:
    server = ServerHarness(Limits(max_header_list_bytes=65_536))
    for stream in range(1, 400, 2):
        many = [(f"x{number}", str(stream)) for number in range(600)]
        server.feed(server.headers(stream, [*REQUEST, *many], END_HEADERS | END_STREAM))
    assert connection_error(server) == Code.ENHANCE_YOUR_CALM


def test_repeated_blocks_are_remembered_up_to_a_size(server: ServerHarness) -> None:
    heads = server.connection._headers
    for stream in range(1, 400, 2):
        name = f"x{stream}"
        server.feed(server.headers(stream, [*REQUEST, (name, "y" * 3000)]))
        assert sum(map(len, heads._blocks)) <= 65_536


# --- turns


def test_a_turn_ends_after_some_frames() -> None:
    server = ServerHarness(Limits(max_frames_per_turn=10))
    requests = b"".join(server.request(stream) for stream in range(1, 25, 2))
    assert server.http2.receive_data(requests)
    assert len(server.calls) == 5
    assert server.http2.receive_data(b"")
    assert len(server.calls) == 10
    assert not server.http2.receive_data(b"")
    assert len(server.calls) == 12


def test_a_turn_that_ends_in_the_middle_of_a_frame_needs_no_other() -> None:
    server = ServerHarness(Limits(max_frames_per_turn=2))
    first = server.request(1)
    assert not server.http2.receive_data(first + server.request(3)[:4])
    assert len(server.calls) == 1


def test_a_turn_ends_with_a_frame_of_many_messages() -> None:
    server = ServerHarness()
    few = frame(DATA, 0, 1, message(b"") * 64)
    many = frame(DATA, 0, 1, message(b"") * 65)
    assert not server.http2.receive_data(server.headers(1, to("/test/Raw")) + few + few)
    (call,) = server.calls
    received: list[bytes] = []
    call.on_message = received.append
    assert server.http2.receive_data(many + many + few)
    assert len(received) == 65
    assert server.http2.receive_data(b"")
    assert len(received) == 130
    assert not server.http2.receive_data(b"")
    assert len(received) == 194


# --- frames that are not completed


@pytest.mark.parametrize("cut", ["frame", "block"])
def test_a_frame_or_header_block_must_be_completed(cut: str) -> None:
    server = ServerHarness(Limits(read_timeout_s=10))
    if cut == "frame":
        server.feed(server.headers(1)[:20])
    else:
        server.feed(server.headers(1, flags=0))
    server.connection.end_incomplete_requests(100)
    server.connection.end_incomplete_requests(109)
    assert server.http2.error is None
    server.connection.end_incomplete_requests(110)
    assert connection_error(server) == Code.ENHANCE_YOUR_CALM


def test_frames_that_are_completed_may_follow_each_other_for_ever() -> None:
    server = ServerHarness(Limits(read_timeout_s=10))
    requests = b"".join(server.request(stream) for stream in range(1, 401, 2))
    for at in range(0, len(requests), 23):
        server.feed(requests[at : at + 23])
        server.connection.end_incomplete_requests(at / 23)
    assert len(server.calls) == 200
    assert server.http2.error is None
