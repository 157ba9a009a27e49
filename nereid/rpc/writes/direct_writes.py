"""Writes that reach the socket at once: uvloop writes only after all input of a turn."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

_write: Final = os.write
# Limited, because data that a full socket does not take is copied.
_MAX_BYTES: Final = 1 << 18


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Return the socket's descriptor, or -1 if the transport is encrypted or has no socket."""
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("ssl_object") is not None:
        return -1
    return int(sock.fileno())


def write_at_once(transport: asyncio.WriteTransport, descriptor: int, data: bytes) -> None:
    """Write as much as the socket takes now; leave the rest, and any error, to the transport."""
    if (
        descriptor < 0
        or len(data) > _MAX_BYTES
        or transport.is_closing()
        or transport.get_write_buffer_size()
    ):
        transport.write(data)
        return
    try:
        written = _write(descriptor, data)
    except OSError:
        written = 0
    if written < len(data):
        transport.write(data[written:])
