"""Keeps a connection that a confined worker is given from accepting others.

Landlock keeps the worker from directing it elsewhere, but not from listening with it. Without Unix
sockets seccomp refuses all that a worker would need for that.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.address import unix_path

if TYPE_CHECKING:
    from collections.abc import Iterable

# Values from asm-generic/socket.h.
_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
# A program of BPF: struct sock_filter has a code, two jumps and an operand.
_INSTRUCTIONS: Final = (
    # Load the byte of a TCP header that has the flags, of which SYN and ACK count.
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    # Drop a packet that has SYN alone, which asks for a connection; let others pass.
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)  # fmt: skip


def refuse_connections(connection: socket.socket) -> None:
    """Drop what asks a TCP socket for a connection, for good; raise OSError on failure."""
    if connection.family == socket.AF_UNIX:
        return
    program = b"".join(struct.pack("@HBBI", *each) for each in _INSTRUCTIONS)
    memory = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(_INSTRUCTIONS), ctypes.addressof(memory))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
    connection.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


def can_refuse_connections(addresses: Iterable[str]) -> bool:
    """Return whether refuse_connections() works for connections to these addresses.

    Newer kernels let only CAP_NET_ADMIN give TCP sockets a filter.
    """
    if all(unix_path(address) is not None for address in addresses):
        return True
    with socket.socket() as connection:
        try:
            refuse_connections(connection)
        except OSError:
            return False
    return True
