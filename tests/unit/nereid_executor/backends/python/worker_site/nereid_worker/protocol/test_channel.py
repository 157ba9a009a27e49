"""The socket between an executor and a worker."""

import socket
import struct
from collections.abc import Iterator

import pytest

from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    Channel,
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


def test_trying_to_send_never_waits(ends: tuple[Channel, Channel]) -> None:
    """What it wrote comes whole, and what it did not write not at all."""
    ours, theirs = ends
    bodies = 0
    while ours.try_send(wire.LOG, [b"a" * 10_000, b"b"]):
        bodies += 1
    assert bodies > 1
    for _ in range(bodies):
        assert theirs.receive() == (wire.LOG, bytearray(b"a" * 10_000 + b"b"))
    assert theirs.receive_nowait() is None
    assert ours.try_send(wire.LOG, [b"c"])
    assert theirs.receive() == (wire.LOG, bytearray(b"c"))


def test_large_frames_are_not_tried(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    assert not ours.try_send(wire.LOG, [b"a" * 100_000])
    assert theirs.receive_nowait() is None


def test_nothing_is_sent_over_a_lost_connection(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    theirs.close()
    assert not ours.try_send(wire.LOG, [b"a"])


@pytest.mark.parametrize(
    ("kind", "size", "passes"),
    [
        (wire.CALL, 3 << 20, True),
        (wire.CALL, (3 << 20) + 1, False),
        (wire.LOG, 1 << 20, True),
        (wire.LOG, (1 << 20) + 1, False),
    ],
)
def test_frames_larger_than_the_other_end_may_send_are_refused_by_their_heads(
    kind: int, size: int, passes: bool
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = Channel(theirs, 3 << 20, 1 << 20)
        ours.sendall(struct.pack("<II", size, kind))
        if not passes:
            with pytest.raises(wire.WireError, match="too large"):
                reader.receive_nowait()
            return
        ours.close()
        with pytest.raises(wire.LostError):
            reader.receive()
