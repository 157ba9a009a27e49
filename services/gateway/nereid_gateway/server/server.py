"""HTTP port: accepts connections, closes silent ones, and drains."""

# layout: not compiled, coroutines, in control calls alone

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final, cast

from nereid.rpc.net.limits.connection_counts import ConnectionCounts
from nereid.rpc.net.limits.stall_detection import StallWatch
from nereid.rpc.net.listener import Listener, listen
from nereid_gateway.server.connection import HttpConnection
from nereid_gateway.server.request_reader import RequestReader

if TYPE_CHECKING:
    from nereid.rpc.net.limits.budget import ByteBudget
    from nereid.rpc.net.shared_ports import InheritedPort
    from nereid.rpc.net.tls_files import Tls
    from nereid_gateway.server.body import AllocateBody
    from nereid_gateway.server.limits import HttpLimits
    from nereid_gateway.server.ordered_responses import Dispatch, SetErrorForm

# This many connections beyond the limit get status 503. Further connections are aborted.
_MAX_REJECTED: Final = 64
_TOO_MANY: Final = "the server has too many connections"


class HttpServer:
    """Listening HTTP port with its connections."""

    def __init__(  # noqa: PLR0913 (one by keyword)
        self,
        dispatch: Dispatch,
        limits: HttpLimits,
        reader: type[RequestReader] = RequestReader,
        allocate_body: AllocateBody | None = None,
        budget: ByteBudget | None = None,
        *,
        set_error_form: SetErrorForm | None = None,
    ) -> None:
        """set_error_form: sets `encode_error` of each call, also of those that are rejected."""
        self._budget = budget
        self._set_error_form = set_error_form
        self._dispatch = dispatch
        self._limits = limits
        self._reader = reader
        self._allocate_body = allocate_body
        self._connections: dict[HttpConnection, StallWatch] = {}
        self._counts = ConnectionCounts(
            "HTTP", limits.max_connections, limits.max_client_connections
        )
        # Responses by status.
        self.statuses: defaultdict[bytes, int] = defaultdict(int)
        self._listener: Listener | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._all_closed: asyncio.Future[None] | None = None

    async def listen(
        self,
        address: str,
        tls: Tls | None = None,
        *,
        reuse_port: bool = False,
        inherited: InheritedPort | None = None,
    ) -> str:
        """Bind host:port or unix:/path, and return the bound address. May raise OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await listen(
            self._make_connection,
            address,
            self._counts,
            tls=tls,
            reuse_port=reuse_port,
            inherited=inherited,
        )
        self._sweep_timer = loop.call_later(self._limits.sweep_interval_s, self._sweep)
        return self._listener.address

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def _make_connection(self) -> asyncio.Protocol:
        connection = HttpConnection(
            self._dispatch,
            self._limits,
            self,
            self._allocate_body,
            budget=self._budget,
            reader=self._reader,
            set_error_form=self._set_error_form,
        )
        return cast("asyncio.Protocol", connection)

    def on_connected(self, connection: HttpConnection) -> None:
        """Add the connection, and reject or abort it if there are too many."""
        self._connections[connection] = StallWatch(self._limits.write_timeout_s)
        beyond = self._counts.add(connection.client, after_handshake=connection.secure)
        if beyond > 0:
            connection.refuse_requests(_TOO_MANY)
        if beyond > _MAX_REJECTED:
            connection.abort()
        elif self._draining or beyond > 0:
            connection.close_after_next_response()

    def on_disconnected(self, connection: HttpConnection) -> None:
        """Forget the connection."""
        self._connections.pop(connection, None)
        self._counts.remove(connection.client)
        all_closed = self._all_closed
        if all_closed is not None and not self._connections and not all_closed.done():
            all_closed.set_result(None)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection, watch in tuple(self._connections.items()):
            if watch.stalled(connection.unsent_bytes, now):
                connection.abort()
            else:
                connection.close_if_silent(now)
        self._sweep_timer = loop.call_later(self._limits.sweep_interval_s, self._sweep)

    def begin_drain(self) -> None:
        """Continue to serve, but close each connection with its next response."""
        self._draining = True
        for connection in tuple(self._connections):
            connection.close_after_next_response()

    def stop_accepting(self) -> None:
        """Accept no new connections and requests. Requests in flight still get their responses."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.close_after_in_flight()

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until all clients have read their responses and disconnected, or time is up."""
        if self._connections:
            self._all_closed = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed, timeout_s)

    async def close(self) -> None:
        """Stop accepting, and close all connections at once."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort()
