"""The HTTP port: accepts connections, keeps the set of them, watches for silent ones, drains."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from nereid.rpc.listening import Listener, listen
from services.gateway.http_protocol import HttpConnection

if TYPE_CHECKING:
    from nereid.tls import Tls
    from services.gateway.http_limits import HttpLimits
    from services.gateway.http_protocol import Dispatch


class HttpServer:
    """One listening HTTP port and its connections."""

    def __init__(
        self,
        dispatch: Dispatch,
        limits: HttpLimits,
        protocol: type[HttpConnection] = HttpConnection,
    ) -> None:
        self._dispatch = dispatch
        self._protocol = protocol
        self._limits = limits
        self._connections: set[HttpConnection] = set()
        # How often each status was answered.
        self.statuses: dict[bytes, int] = defaultdict(int)
        self._listener: Listener | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._draining = False
        self._all_gone: asyncio.Future[None] | None = None

    async def listen(
        self, address: str, tls: Tls | None = None, *, reuse_port: bool = False
    ) -> str:
        """Bind and serve at host:port or unix:/path; the address really bound.

        Raises:
            OSError: the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        self._listener = await listen(self._connection, address, tls=tls, reuse_port=reuse_port)
        self._sweeper = loop.call_later(self._limits.sweep_interval_s, self._sweep)
        return self._listener.address

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def _connection(self) -> HttpConnection:
        connection = self._protocol(self._dispatch, self._limits, self._made, self._gone)
        connection.statuses = self.statuses
        return connection

    def _made(self, connection: HttpConnection) -> None:
        self._connections.add(connection)
        if self._draining:
            connection.say_goodbye()

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
        if self._listener is not None:
            self._listener.close()
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
