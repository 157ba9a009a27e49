"""Connections to a server over gRPC."""

# layout: compiled

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.dialing import Dialer
from nereid_adopt.proxy.http2_streams import Http2ServerConnection
from nereid_adopt.proxy.http2_transport import StreamProtocol
from nereid_adopt.proxy.http_server import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.net.tls_files import Tls

# Connections that may be closed while a call waits for a stream.
_DIALS: Final = 3


class GrpcServer:
    """Connection to a server over HTTP/2, dialled when it is needed."""

    def __init__(
        self,
        address: str,
        on_connected: Callable[[Http2ServerConnection], None],
        tls: Tls | None = None,
    ) -> None:
        self._address = address
        self._on_connected = on_connected
        self._tls = tls
        self._dialer = Dialer(address, CONNECT_TIMEOUT_S)
        self._connection: Http2ServerConnection | None = None
        self._dialing: asyncio.Task[StreamProtocol[Http2ServerConnection]] | None = None

    async def connect(self) -> Http2ServerConnection:
        """Return a usable connection that has a slot for a stream; may raise OSError."""
        for _ in range(_DIALS):
            connection = self._connection
            if connection is None or not connection.usable:
                if self._dialing is None:
                    self._dialing = asyncio.ensure_future(self._dialer.connect(_dial, self._tls))
                    self._dialing.add_done_callback(self._on_dialed)
                connection = (await asyncio.shield(self._dialing)).connection
            free = asyncio.Event()
            connection.when_free(free.set)
            await free.wait()
            if connection.usable:
                return connection
        raise OSError(f"{self._address} closes its connections")

    @property
    def ready(self) -> Http2ServerConnection | None:
        """A connection that takes a stream at once, if there is one."""
        connection = self._connection
        return connection if connection is not None and connection.has_free_slot else None

    def close(self) -> None:
        """Close the connection."""
        if self._dialing is not None:
            self._dialing.cancel()
        if self._connection is not None:
            self._connection.writer.abort()

    def _on_dialed(self, task: asyncio.Task[StreamProtocol[Http2ServerConnection]]) -> None:
        self._dialing = None
        if not task.cancelled() and task.exception() is None:
            self._connection = connection = task.result().connection
            self._on_connected(connection)


def _dial() -> StreamProtocol[Http2ServerConnection]:
    return StreamProtocol(Http2ServerConnection)
