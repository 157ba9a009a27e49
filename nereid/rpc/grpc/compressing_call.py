"""Calls of our own engine whose answers are compressed.

Compression runs in the event loop: who asks for it takes that other calls wait meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.rpc.grpc.compression import compress
from nereid.rpc.grpc.metadata import literal
from nereid.rpc.grpc.server_connection import HEAD_BLOCK, ServerCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.rpc.grpc.request_head import RequestHead
    from nereid.rpc.grpc.server_connection import ServerConnection


class CompressingCall(ServerCall):
    """A call whose client takes compressed answers, and is to get them where that helps."""

    __slots__ = ("_encoding",)

    def __init__(self, connection: ServerConnection, stream_id: int, head: RequestHead) -> None:
        super().__init__(connection, stream_id, head)
        self._encoding = head.reply_encoding or "identity"

    def reply(self, message: bytes) -> None:
        self.send(message)
        self.finish()

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self.reply(b"".join(parts))

    def accept(self) -> None:
        if not self.head_sent and not self.done:
            self.head_sent = True
            connection = self.connection
            block = HEAD_BLOCK + literal(b"grpc-encoding", self._encoding.encode())
            connection.write(connection.header_frames(self.id, block, 0))

    def send(self, message: bytes) -> None:
        if not self.done:
            self.accept()
            smaller = compress(self._encoding, message)
            if smaller is None:
                self.connection.send_message(self, message)
            else:
                self.connection.send_message(self, smaller, 1)
