"""The HTTP port: accepts connections, keeps the set of them, watches for silent ones, drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.listener import Listener, listen
from nereid.rpc.net.stall_detection import StallWatch
from nereid.services.gateway.http.server.connection import HttpConnection

if TYPE_CHECKING:
    from nereid.rpc.net.tls_files import Tls
    from nereid.services.gateway.http.server.body import RoomFor
    from nereid.services.gateway.http.server.call import HttpCall
    from nereid.services.gateway.http.server.connection import Dispatch
    from nereid.services.gateway.http.server.limits import HttpLimits

_log = logging.getLogger(__name__)

# Of the connections beyond the limit, those whose first request is answered; others are cut off.
_TURNED_AWAY: Final = 64
_FULL_TOLD_S: Final = 10.0


def _turn_away(call: HttpCall) -> None:
    call.fail(503, "the server has too many connections", extra=b"Retry-After: 1\r\n")


class HttpServer:
    """One listening HTTP port and its connections."""

    def __init__(
        self,
        dispatch: Dispatch,
        limits: HttpLimits,
        protocol: type[HttpConnection] = HttpConnection,
        room_for: RoomFor | None = None,
    ) -> None:
        self._room_for = room_for
        self._dispatch = dispatch
        self._protocol = protocol
        self._limits = limits
        self._connections: dict[HttpConnection, StallWatch] = {}
        self._full_told_at = -_FULL_TOLD_S
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
        full = len(self._connections) >= self._limits.max_connections
        dispatch = _turn_away if full else self._dispatch
        connection = self._protocol(dispatch, self._limits, self._made, self._gone)
        connection.statuses = self.statuses
        connection.room_for = self._room_for
        return connection

    def _made(self, connection: HttpConnection) -> None:
        self._connections[connection] = StallWatch(self._limits.write_timeout_s)
        beyond = len(self._connections) - self._limits.max_connections
        if beyond > 0:
            self._tell_full()
        if beyond > _TURNED_AWAY:
            connection.abort()
        elif self._draining or beyond > 0:
            connection.say_goodbye()

    def _tell_full(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._full_told_at >= _FULL_TOLD_S:
            self._full_told_at = now
            most = self._limits.max_connections
            _log.warning("more than %d HTTP connections: the newest are turned away", most)

    def _gone(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)
        all_gone = self._all_gone
        if all_gone is not None and not self._connections and not all_gone.done():
            all_gone.set_result(None)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection, watch in tuple(self._connections.items()):
            if watch.stalled(connection.unsent_bytes, now):
                connection.abort()
            else:
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
