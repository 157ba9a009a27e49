"""Frames between executors and workers: encoded and decoded, in pieces, and damaged."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    _HEAD,
    Channel,
)
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.wire import (
    Member,
    Range,
    Reply,
)

RANGES = st.builds(Range, st.text(max_size=9), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
TENSORS = st.lists(st.one_of(st.binary(max_size=99), RANGES), max_size=4)
MEMBERS = st.builds(
    Member, st.integers(0, 9), st.integers(0, 1 << 63), st.binary(max_size=40), TENSORS
)
REPLIES = st.builds(Reply, st.integers(0, 9), st.integers(0, 7), st.binary(max_size=40), TENSORS)
NUMBERS = st.integers(0, (1 << 64) - 1)


def joined(parts: list[bytes]) -> bytearray:
    return bytearray(b"".join(parts))


@given(NUMBERS, st.lists(MEMBERS, max_size=5))
def test_batches_survive_the_round_trip(number: int, members: list[Member]) -> None:
    assert wire.read_batch(joined(wire.batch_parts(number, members))) == (number, members)


@given(NUMBERS, st.integers(0, 1), st.lists(REPLIES, max_size=5))
def test_responses_survive_the_round_trip(number: int, flags: int, replies: list[Reply]) -> None:
    body = joined(wire.responses_parts(number, flags, replies))
    assert wire.read_responses(body) == (number, flags, replies)


@given(st.lists(REPLIES, min_size=1, max_size=3), st.data())
def test_damaged_responses_are_refused_or_read_as_something_else(
    replies: list[Reply], data: st.DataObject
) -> None:
    body = joined(wire.responses_parts(1, 0, replies))
    place = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        del body[place:]
    else:
        body[place] ^= data.draw(st.integers(1, 255))
    try:
        wire.read_responses(body)
    except wire.WireError:
        return


@given(st.binary(max_size=200))
def test_noise_is_refused_or_harmless(noise: bytes) -> None:
    for read in (wire.read_responses, wire.read_batch):
        try:
            read(bytearray(noise))
        except wire.WireError:
            continue


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


@pytest.mark.parametrize("size", [0, 1, 100, (1 << 18) - 8, 1 << 18, 3_000_000])
def test_frames_of_any_size_pass(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = Channel(theirs)
        body = bytes(range(256)) * (size // 256 + 1)
        frames = [body[:size], b"", body[: size // 2]]
        sender = Channel(ours)

        def send() -> None:
            for frame in frames:
                sender.send(7, [frame[:10], frame[10:]])

        thread = threading.Thread(target=send)
        thread.start()
        try:
            assert [reader.receive() for _ in frames] == [(7, bytearray(each)) for each in frames]
        finally:
            thread.join()


def test_frames_in_pieces_are_put_together(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    stream = b"".join(_HEAD.pack(len(text), 9) + text for text in (b"one", b"", b"three"))
    taken = []
    for place in range(len(stream)):
        other.sendall(stream[place : place + 1])
        while (frame := channel.receive_nowait()) is not None:
            taken.append(bytes(frame[1]))
    assert taken == [b"one", b"", b"three"]


def test_one_read_may_bring_several_frames(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    assert channel.buffered_frame() is None
    assert not channel.read_available()
    stream = b"".join(_HEAD.pack(len(text), 9) + text for text in (b"one", b"two"))
    other.sendall(stream + _HEAD.pack(5, 9) + b"th")
    assert channel.read_available()
    assert [channel.buffered_frame() for _ in range(3)] == [
        (9, bytearray(b"one")),
        (9, bytearray(b"two")),
        None,
    ]
    other.sendall(b"ree")
    assert channel.read_available()
    assert channel.buffered_frame() == (9, bytearray(b"three"))


@pytest.mark.parametrize("dtype", [np.float16, np.bool_, np.int64])
def test_arrays_travel_as_their_bytes(dtype: Any) -> None:
    array = np.ones((2, 3), dtype)
    _, _, (reply,) = wire.read_responses(joined(wire.responses_parts(1, 0, [(0, 0, b"", [array])])))
    assert [bytes(each) for each in reply.tensors] == [array.tobytes()]


def test_an_oversized_frame_is_refused(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, other = ends
    other.sendall(_HEAD.pack(0xFFFFFFFF, 1))
    with pytest.raises(wire.WireError):
        channel.receive()


def test_a_closed_socket_is_an_error(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.sendall(_HEAD.pack(100, 1))
    other.close()
    with pytest.raises(wire.LostError):
        channel.receive()
    with pytest.raises(wire.LostError):
        channel.send(1, [b"x"])


def test_waiting_has_a_limit(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    # More than a socket holds, and nobody reads.
    with pytest.raises(wire.SlowError):
        channel.send(1, [bytes(1 << 26)], limit_s=0.001)


def test_a_finaliser_never_waits_for_the_frame_being_sent(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, other = ends
    reader = Channel(other)
    # A finaliser may run in the midst of a send, in the very thread that has the lock.
    with channel._send_lock:
        channel.send_from_finalizer(3, [b"a", b"b"])
        channel.send_from_finalizer(4, [b"c"])
        assert reader.receive_nowait() is None
    channel.send(5, [b"d"])
    channel.send_from_finalizer(6, [b"e"])
    frames = [reader.receive() for _ in range(4)]
    sent = [(kind, bytes(body)) for kind, body in frames]
    assert sent == [(5, b"d"), (3, b"ab"), (4, b"c"), (6, b"e")]
