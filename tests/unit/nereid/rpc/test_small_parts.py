"""The small pure parts: framing, compression, deadlines, back-off, addresses, statuses."""

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.rpc.grpc.compression import decompress
from nereid.rpc.grpc.deadlines import Deadlines
from nereid.rpc.grpc.messages import PartialMessage, check_message_head
from nereid.rpc.grpc.status import RpcError, Status, status_of_http, status_of_reset
from nereid.rpc.http2.frames import header_frames
from nereid.rpc.net.address import host_and_port, text_of, unix_path
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from nereid.rpc.net.stall_detection import StallWatch
from tests.support.rpc.http2_frames import message

# --- framing


@given(st.lists(st.binary(max_size=3000), max_size=4), st.lists(st.integers(1, 4000), min_size=1))
def test_messages_survive_any_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(message(body) for body in bodies)
    got, assembly, at, turn = [], PartialMessage(1 << 20), 0, 0
    while at < len(stream):
        data = stream[at : at + cuts[turn % len(cuts)]]
        at, turn, start = at + len(data), turn + 1, 0
        while start < len(data):
            start = assembly.feed(data, start, len(data))
            if assembly.complete:
                got.append(assembly.message())
                assembly = PartialMessage(1 << 20)
    assert got == bodies


def test_heads_are_refused_before_the_body_is_there() -> None:
    with pytest.raises(RpcError) as caught:
        PartialMessage(99).feed(message(bytes(100))[:5], 0, 5)
    assert caught.value.status == Status.RESOURCE_EXHAUSTED
    with pytest.raises(RpcError) as caught:
        check_message_head(2, 0, 100)
    assert caught.value.status == Status.INTERNAL
    check_message_head(1, 100, 100)


# --- compression


def test_decompression() -> None:
    body = b"squeeze" * 100
    assert decompress("gzip", gzip.compress(body), 700) == body
    assert decompress("deflate", zlib.compress(body), 700) == body


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("gzip", gzip.compress(bytes(701), mtime=0), Status.RESOURCE_EXHAUSTED),
        ("gzip", gzip.compress(bytes(10), mtime=0)[:-1], Status.INTERNAL),
        ("gzip", gzip.compress(bytes(10), mtime=0) + b"more", Status.INTERNAL),
        ("gzip", b"rubbish", Status.INTERNAL),
        ("deflate", gzip.compress(bytes(10), mtime=0), Status.INTERNAL),
        ("identity", b"", Status.INTERNAL),
    ],
)
def test_what_cannot_be_decompressed(encoding: str, data: bytes, status: Status) -> None:
    with pytest.raises(RpcError) as caught:
        decompress(encoding, data, 700)
    assert caught.value.status == status


# --- deadlines


def test_deadlines_come_up_in_time_and_never_early() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next_due() is None
    assert deadlines.add("b", 10.5)
    assert not deadlines.add("b2", 10.5)
    assert deadlines.add("a", 10.0)
    assert not deadlines.add("c", 11.0)
    due = deadlines.next_due()
    assert due is not None
    assert 10.0 < due <= 10.011
    assert deadlines.expire(10.0) == []
    assert deadlines.expire(10.02) == ["a"]
    deadlines.discard("b2", 10.5)
    deadlines.discard("unknown", 77.0)
    assert deadlines.expire(20.0) == ["b", "c"]
    assert deadlines.next_due() is None


def test_a_refilled_bucket_comes_up_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add("a", 10.0)
    deadlines.discard("a", 10.0)
    deadlines.add("b", 10.0)
    assert deadlines.expire(11) == ["b"]


def test_responded_calls_leave_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.add(number, 1000.0 + number)
        deadlines.discard(number, 1000.0 + number)
    assert len(deadlines._order) < 200
    assert not deadlines._buckets


# --- back-off


def test_back_off_grows_to_its_limit_and_starts_anew() -> None:
    options = BackoffOptions(first_s=1, factor=2, largest_s=5, jitter=0)
    backoff = Backoff(options)
    assert [backoff.next_delay_s() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.succeeded()
    assert backoff.next_delay_s() == 1
    shaky = Backoff(BackoffOptions(first_s=1, jitter=0.5), random.Random(1))
    assert 0.5 <= shaky.next_delay_s() <= 1.5


# --- addresses


def test_addresses() -> None:
    assert unix_path("unix:/a/b") == "/a/b"
    assert unix_path("unix:///a/b") == "/a/b"
    assert unix_path("unix:b") == "b"
    assert unix_path("a:1") is None
    assert host_and_port("[::1]:80") == ("::1", 80)
    assert host_and_port("h:0") == ("h", 0)
    for bad in ("h", "h:", "h:x", "80"):
        with pytest.raises(ValueError, match="not host:port"):
            host_and_port(bad)
    assert text_of(("::1", 80, 0, 0)) == "[::1]:80"
    assert text_of(("h", 80)) == "h:80"
    assert text_of("") == "unix:"
    assert text_of(b"/a") == "unix:/a"


# --- statuses


def test_statuses() -> None:
    assert status_of_reset(7) == Status.UNAVAILABLE
    assert status_of_reset(2) == Status.INTERNAL
    assert status_of_http(503) == Status.UNAVAILABLE
    assert status_of_http(200) == Status.UNKNOWN
    error = RpcError(Status.ABORTED, "why", [("a", "b")])
    assert str(error) == "ABORTED: why"
    assert error.trailers == (("a", "b"),)


def test_long_blocks_go_out_in_pieces() -> None:
    frames = header_frames(3, b"x" * 25, 1, 10)
    assert frames == (
        b"\x00\x00\x0a\x01\x01\x00\x00\x00\x03"
        + b"x" * 10
        + b"\x00\x00\x0a\x09\x00\x00\x00\x00\x03"
        + b"x" * 10
        + b"\x00\x00\x05\x09\x04\x00\x00\x00\x03"
        + b"x" * 5
    )


# --- stalls


def test_a_stall_is_nothing_taken_for_too_long() -> None:
    watch = StallWatch(10)
    for waiting_bytes, now, stalled in (
        (0, 100, False),
        (50, 101, False),
        (50, 109, False),
        (40, 110, False),  # slow, but alive
        (60, 119, False),
        (60, 120, True),
        (0, 121, False),
        (60, 122, False),
        (60, 131, False),
        (60, 132, True),
    ):
        assert watch.stalled(waiting_bytes, now) is stalled, now
    patient = StallWatch(None)
    assert not any(patient.stalled(1, now) for now in (1, 1e9))
