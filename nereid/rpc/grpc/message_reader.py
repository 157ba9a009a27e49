"""A gRPC message that arrives in pieces.

Pure. Whole messages in one DATA frame never come here; the connection cuts those straight from its
input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.http2.frames import MESSAGE_HEAD

if TYPE_CHECKING:
    from nereid.rpc.grpc.call import AllocateBuffer, MessageBuffer

_HEAD_BYTES = MESSAGE_HEAD.size
# A bytes object costs some 40 bytes beside its content; crumbs smaller than this are copied
# together so that a peer sending byte by byte cannot make a message cost forty times its size.
_CRUMB_BYTES = 1024


class Assembly:
    """Collects one message: its five-byte head, then its body."""

    __slots__ = (
        "_head",
        "_make_room",
        "_max_bytes",
        "_missing",
        "_pieces",
        "_room",
        "_size",
        "compressed",
    )

    def __init__(self, max_bytes: int, make_room: AllocateBuffer | None = None) -> None:
        """make_room: says where a message may go instead of into bytes."""
        self._make_room = make_room
        self._room: MessageBuffer | None = None
        self._size = 0
        self._head = b""
        self._max_bytes = max_bytes
        self._missing = -1
        self._pieces: list[bytes | bytearray] = []
        self.compressed = 0

    def feed(self, data: bytes, start: int, stop: int) -> int:
        """Take what belongs to this message; returns where the next one starts."""
        if self._missing < 0:
            take = min(stop - start, _HEAD_BYTES - len(self._head))
            self._head += data[start : start + take]
            start += take
            if len(self._head) < _HEAD_BYTES:
                return start
            self.compressed, self._missing = MESSAGE_HEAD.unpack(self._head)
            check_head(self.compressed, self._missing, self._max_bytes)
            self._size = self._missing
            if self.compressed:
                self._make_room = None
        take = min(stop - start, self._missing)
        if take:
            if self._make_room is not None:
                self._room = self._make_room(self._size, memoryview(data)[start : start + take])
                self._make_room = None
            if self._room is not None:
                place = self._size - self._missing
                self._room.view[place : place + take] = memoryview(data)[start : start + take]
            else:
                self._add(data[start : start + take])
            self._missing -= take
        return start + take

    def _add(self, piece: bytes) -> None:
        pieces = self._pieces
        if len(piece) >= _CRUMB_BYTES:
            pieces.append(piece)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += piece
        else:
            pieces.append(bytearray(piece))

    @property
    def complete(self) -> bool:
        return self._missing == 0

    def message(self) -> bytes | MessageBuffer:
        return b"".join(self._pieces) if self._room is None else self._room


def check_head(compressed: int, size: int, max_bytes: int) -> None:
    """Refuse a message by its head, before any of its body is kept."""
    if compressed > 1:
        raise RpcError(Status.INTERNAL, "a message with an unknown flag")
    if size > max_bytes:
        raise RpcError(
            Status.RESOURCE_EXHAUSTED, f"message of {size} bytes is larger than {max_bytes} bytes"
        )
