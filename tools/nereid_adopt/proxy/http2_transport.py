"""Transport of a connection over HTTP/2."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from nereid.rpc.http2.protocol import Http2Protocol
from nereid_adopt.proxy.http2_streams import StreamConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.http2.writer import Http2Writer

_Connection = TypeVar("_Connection", bound=StreamConnection)


class StreamProtocol(Http2Protocol, Generic[_Connection]):
    """Transport of one connection, which is made for the writer."""

    def __init__(self, make_connection: Callable[[Http2Writer], _Connection]) -> None:
        super().__init__(asyncio.get_running_loop())
        self.connection = make_connection(self.writer)
        self.http2 = self.connection.http2

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if self.connection.receive(data):
            self._read_on_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all streams."""
        super().connection_lost(exc)
        self.connection.connection_lost()
