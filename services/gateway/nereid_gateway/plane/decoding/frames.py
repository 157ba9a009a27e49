"""Frames between the gateway and a decoder process: a pickled object and blobs.

Unpickling is safe: both ends are Nereid's own code with the same rights, and no other process has
the socket.
"""

from __future__ import annotations

import pickle
import socket
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.core.tensors.jobs import Blob


_SIZES: Final = Struct("<QQ")
_SIZE: Final = Struct("<Q")


def send_frame(channel: socket.socket, message: Any, blobs: Sequence[Blob]) -> None:
    """Send a frame; the call blocks. Raises OSError if the other end is closed."""
    pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    sizes = b"".join(_SIZE.pack(len(blob)) for blob in blobs)
    channel.sendall(_SIZES.pack(len(pickled), len(blobs)) + sizes + pickled)
    for blob in blobs:
        channel.sendall(blob)


def receive_frame(channel: socket.socket) -> tuple[Any, list[bytes]]:
    """Receive a frame; the call blocks. Raises EOFError or OSError if the connection ends."""
    pickled_size, count = _SIZES.unpack(_receive(channel, _SIZES.size))
    sizes = _receive(channel, _SIZE.size * count)
    message = pickle.loads(_receive(channel, pickled_size))  # noqa: S301 - the other end is ours
    return message, [_receive(channel, size) for (size,) in _SIZE.iter_unpack(sizes)]


def _receive(channel: socket.socket, size: int) -> bytes:
    """Receive exactly size bytes. The kernel copies them without the interpreter's lock."""
    data = channel.recv(size, socket.MSG_WAITALL) if size else b""
    if len(data) == size:
        return data
    parts = [data]
    missing = size - len(data)
    while missing:
        part = channel.recv(missing, socket.MSG_WAITALL)
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
