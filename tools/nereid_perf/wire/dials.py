"""Dials connections for requests that wait for one, with any protocol."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.dialing import Dialer
from nereid.rpc.net.tls_files import reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nereid.rpc.net.tls_files import Tls
    from nereid_perf.plan import Plan
    from nereid_perf.wire.client import OnEnd, PendingRequest

    # Opens a connection or raises OSError. The connection reports itself to the client.
    Connect = Callable[[Dialer, Tls | None], Awaitable[object]]

_REDIAL_S: Final = 0.1


class Dials:
    """Dials a client's connections; fails requests in `queue` if none can be opened."""

    def __init__(
        self, plan: Plan, on_end: OnEnd, connect: Connect, slots_per_connection: int = 1
    ) -> None:
        """Prepare to dial the plan's server; raise OSError if a TLS file cannot be used."""
        self.queue: deque[PendingRequest] = deque()
        # Why the last attempt failed, or "".
        self.error = ""
        self.closed = False
        self._on_end = on_end
        self._connect = connect
        self._slots = slots_per_connection
        self._address = plan.endpoint.address
        self._timeout_s = plan.connect_timeout_s
        self._tls = plan.endpoint.client_tls()
        self._tasks: set[asyncio.Task[None]] = set()
        self._redial_at = 0.0

    def dial_for_queue(self) -> None:
        """Dial one more connection if the current dials are too few for the waiting requests."""
        if len(self._tasks) * self._slots < len(self.queue) and not self.closed:
            task = asyncio.ensure_future(self.dial())
            self._tasks.add(task)
            task.add_done_callback(self._on_dialled)

    async def dial(self) -> None:
        """Dial one connection, which may fail."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._redial_at - loop.time())
        dialer = Dialer(self._address, self._timeout_s)
        try:
            await self._connect(dialer, self._tls)
        except OSError as error:
            why = "timed out" if isinstance(error, TimeoutError) else reason(error)
            self.error = f"cannot connect to {self._address}: {why}"
            self._redial_at = loop.time() + _REDIAL_S
            queue = [*self.queue]
            self.queue.clear()
            for pending in queue:
                pending.last_ns = monotonic_ns()
                self._on_end(pending, self.error)
        finally:
            await dialer.close()

    async def close(self) -> None:
        """Stop dialling."""
        self.closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_dialled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # Requests that arrived during this attempt relied on it.
        self.dial_for_queue()
