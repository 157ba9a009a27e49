"""Frames from the executor, read by the thread that runs the model."""

import socket

import pytest

from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    Channel,
)
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.frame_reader import (
    FrameReader,
)


def test_each_frame_goes_to_the_handler_of_its_kind() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        executor, reader = Channel(ours), FrameReader(Channel(theirs))
        handled: list[tuple[str, bytes]] = []
        reader.add_handlers({1: lambda body: handled.append(("one", bytes(body)))})
        reader.add_handlers({2: lambda body: handled.append(("two", bytes(body)))})
        reader.read_arrived()
        for kind, body in ((2, b"a"), (1, b"b"), (1, b"c")):
            executor.send(kind, [body])
        reader.read_frame()
        assert handled == [("two", b"a")]
        reader.read_arrived()
        assert handled[1:] == [("one", b"b"), ("one", b"c")]
        executor.send(3, [b""])
        with pytest.raises(wire.WireError, match="a frame of kind 3"):
            reader.read_frame()
        assert not reader.has_thread
        assert not reader.in_thread()
