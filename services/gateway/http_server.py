"""The HTTP port: accepts connections, keeps the set of them, watches for silent ones, drains."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from services.gateway.http_protocol import HttpConnection

if TYPE_CHECKING:
    from services.gateway.http_limits import HttpLimits
    from services.gateway.http_protocol import Dispatch


class HttpServer:
    """One listening HTTP port and its connections."""

    def __init__(self, dispatch: Dispatch, limits: HttpLimits) -> None:
        self._dispatch = dispatch
        self._limits = limits
        self._connections: set[HttpConnection] = set()
        # How often each status was answered.
        self.statuses: dict[bytes, int] = defaultdict(int)
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._draining = False
        self._all_gone: asyncio.Future[None] | None = None

    async def listen(self, host: str, port: int, *, reuse_port: bool = False) -> str:
        """Bind and serve; the address really bound.

        Raises:
            OSError: the port cannot be had.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connection, host, port, reuse_port=reuse_port or None, backlog=1024
        )
        self._sweeper = loop.call_later(self._limits.sweep_interval_s, self._sweep)
        bound = self._server.sockets[0].getsockname()
        return f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def _connection(self) -> HttpConnection:
        connection = HttpConnection(self._dispatch, self._limits, self._gone)
        connection.statuses = self.statuses
        self._connections.add(connection)
        if self._draining:
            connection.say_goodbye()
        return connection

    def _gone(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        all_gone = self._all_gone
        if all_gone is not None and not self._connections and not all_gone.done():
            all_gone.set_result(None)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self._connections):
            connection.sweep(now)
        self._sweeper = loop.call_later(self._limits.sweep_interval_s, self._sweep)

    def begin_drain(self) -> None:
        """Go on serving, but let every answer close its connection."""
        self._draining = True
        for connection in tuple(self._connections):
            connection.say_goodbye()

    def stop_accepting(self) -> None:
        """No new connections and no new requests; those under way are still answered."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.end()

    async def closed(self, timeout_s: float) -> None:
        """Wait until each connection has taken its answers and is gone, no longer than this."""
        if self._connections:
            self._all_gone = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone, timeout_s)

    async def close(self) -> None:
        """End everything at once."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()
