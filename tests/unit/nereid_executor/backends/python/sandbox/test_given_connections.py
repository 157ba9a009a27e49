"""A TCP connection that a worker is given carries what it carried, and accepts nothing."""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket

import pytest

from nereid_executor.backends.python.sandbox import given_connections
from nereid_executor.backends.python.sandbox.given_connections import (
    can_refuse_connections,
    refuse_connections,
)

LIMIT_S = 20


CAN_REFUSE = can_refuse_connections(["127.0.0.1:1"])


@pytest.mark.skipif(not CAN_REFUSE, reason="this kernel needs CAP_NET_ADMIN for it")
@pytest.mark.parametrize("is_given", [True, False])
def test_it_does_not_listen(is_given: bool) -> None:
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        given = stack.enter_context(socket.create_connection(scheduler.getsockname(), LIMIT_S))
        peer = stack.enter_context(scheduler.accept()[0])
        if is_given:
            refuse_connections(given)
        for sender, receiver in ((peer, given), (given, peer)):
            sender.sendall(b"x" * 10_000)
            receiver.settimeout(LIMIT_S)
            assert len(receiver.recv(10_000, socket.MSG_WAITALL)) == 10_000
        # AF_UNSPEC ends the connection, so that the socket can listen.
        assert ctypes.CDLL(None).connect(given.fileno(), bytes(16), 16) == 0
        given.listen()
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(given.getsockname())
        # Packets over loopback arrive within the call.
        assert bool(select.select([], [client], [], 0)[1]) is not is_given


def test_unix_sockets_need_no_filter() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        refuse_connections(ours)
        theirs.sendall(b"x")
        assert ours.recv(1) == b"x"


def test_a_kernel_that_allows_no_filter_matters_for_tcp_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The kernel refuses a program without instructions, as others refuse any.
    monkeypatch.setattr(given_connections, "_INSTRUCTIONS", ())
    assert can_refuse_connections(["unix:/run/nereid/scheduler"])
    assert not can_refuse_connections(["unix:/run/nereid/scheduler", "scheduler:8003"])
