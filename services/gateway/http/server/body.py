"""The body of one HTTP request while it arrives: in pieces, or where a large one is to lie.

A body that has a place of its own needs no parser any more: its bytes go there as they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.services.gateway.http.server.limits import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.services.gateway.http.server.call import HttpCall
    from nereid.services.gateway.http.server.limits import HttpLimits
    from nereid.services.gateway.tensor_memory import MessageBuffer

    # Where the body of a call goes that is so long; None: wherever.
    RoomFor = Callable[[HttpCall, int], MessageBuffer | None]


class Body:
    """Counts what comes, and gathers it. All but clear and hand_over raise Refused at a limit."""

    __slots__ = ("_chunks", "_limits", "_pieces", "_size_bytes", "_told_bytes", "room")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._pieces: list[bytes] = []
        self._chunks = 0
        self._size_bytes = 0
        # Of what came behind the headers' last piece: content and all that frames it.
        self._told_bytes = 0
        # As long as the body; None: it is gathered in pieces.
        self.room: MessageBuffer | None = None

    def clear(self) -> None:
        """Let go of what came; another body may begin."""
        self._pieces.clear()
        self.room = None
        self._size_bytes = self._chunks = self._told_bytes = 0

    def announce(self, call: HttpCall, room_for: RoomFor | None) -> None:
        """The headers of its call are whole."""
        size_bytes = int(call.headers.get(b"content-length", 0))
        self._limits.check_body(size_bytes)
        if size_bytes and room_for is not None:
            self.room = room_for(call, size_bytes)

    def expect(self, size_bytes: int) -> None:
        """So many bytes come next, before they are told apart: not all need be its content."""
        self._limits.check_framing(self._told_bytes - self._size_bytes, self._chunks)
        self._told_bytes += size_bytes

    def begin_chunk(self) -> None:
        """It comes in chunks, and here is another one."""
        self._chunks += 1
        if self._chunks > self._limits.max_chunks:
            raise Refused(400, f"request body has more than {self._limits.max_chunks} chunks")

    def add(self, piece: bytes | memoryview) -> None:
        """The next bytes."""
        begin = self._size_bytes
        end = self._size_bytes = begin + len(piece)
        self._limits.check_body(end)
        if self.room is None:
            self._pieces.append(bytes(piece))
        else:
            self.room.view[begin:end] = piece

    def take(self, data: bytes) -> bytes:
        """What is missing of a body that has a room; returns what is behind it."""
        assert self.room is not None, "the parser alone knows where such a body ends"
        missing = len(self.room) - self._size_bytes
        self.add(data if len(data) <= missing else memoryview(data)[:missing])
        return data[missing:]

    @property
    def whole(self) -> bool:
        """Whether a room is full."""
        return self.room is not None and len(self.room) == self._size_bytes

    def hand_over(self, call: HttpCall) -> None:
        """The body is whole: it is the call's."""
        call.room = self.room
        pieces = self._pieces
        if pieces:
            call.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.clear()
