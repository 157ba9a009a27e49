"""Whether an address can be listened at, as whoever listens there binds it."""

from __future__ import annotations

import socket

import pytest

from nereid.rpc.net.binding import bind_all_tcp, check_tcp


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def test_a_port_in_use_is_an_error_and_another_familys_is_not() -> None:
    (taken,) = await bind_all_tcp("127.0.0.1:0", reuse_port=False)
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use"):
            check_tcp(f"127.0.0.1:{port}", reuse_port=False)
        if _has_ipv6():
            check_tcp(f"[::]:{port}", reuse_port=False)
    check_tcp(f"127.0.0.1:{port}", reuse_port=False)


async def test_ports_that_are_shared() -> None:
    (shared,) = await bind_all_tcp("127.0.0.1:0", reuse_port=True)
    with shared:
        address = f"127.0.0.1:{shared.getsockname()[1]}"
        check_tcp(address, reuse_port=True)
        with pytest.raises(OSError, match="Address already in use"):
            check_tcp(address, reuse_port=False)
