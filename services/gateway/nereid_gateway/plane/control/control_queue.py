"""Queue of control calls, which cost the mesh more than their sizes suggest.

One call begins per turn of the event loop, so that the loop does other work in between. Clients
take turns: a client is an address or, with credentials, a principal. Each has a limit on its calls
in progress and on its waiting calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from nereid.core.errors import Unavailable
from nereid.core.retry_after import DEFAULT_MS
from nereid.rpc.net.address import client_of
from nereid.rpc.net.limits.budget import NO_ACCOUNT, OverBudgetError
from nereid.rpc.net.limits.fair_queue import FairQueue, QueueFullError
from nereid_gateway.core.retry_hints import over_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from typing import Any

    from nereid.rpc.net.limits.budget import Account

Result = TypeVar("Result")

# One client may have half of them.
_MAX_WAITING: Final = 2048
# Per client. Loads take long, and clients request many at once.
_MAX_IN_PROGRESS: Final = 32
_TOO_MANY: Final = (
    "too many control calls are waiting; wait for the responses to some before you send more"
)


class ControlQueue:
    """Queue of control calls of one gateway. It belongs to one event loop."""

    def __init__(
        self, max_waiting: int = _MAX_WAITING, max_in_progress: int = _MAX_IN_PROGRESS
    ) -> None:
        self._waiting = FairQueue[asyncio.Future[None]]("control calls", max_waiting)
        self._max_in_progress = max_in_progress
        self._in_progress: Counter[Hashable] = Counter()
        # True if a call has begun in this turn of the loop. The next turn is then scheduled.
        self._turn_is_taken = False
        # Calls that are completed even if their clients disconnect.
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self,
        peer: str,
        work: Callable[[], Coroutine[Any, Any, Result]],
        principal: Hashable = None,
        *,
        account: Account = NO_ACCOUNT,
        survives_disconnect: bool = False,
    ) -> Result:
        """Run work() when it is this client's turn, and return its result.

        principal: the client, or None if the peer's address is the client.
        survives_disconnect: do not cancel work that has begun; it counts as in progress until it
        ends. Raises Unavailable if too many calls wait or the client has too many unread bytes.
        """
        client = client_of(peer) if principal is None else principal
        await self._wait(peer, client)
        try:
            account.check_unread()
        except OverBudgetError as error:
            self._end(client)
            raise over_budget(error) from None
        if not survives_disconnect:
            try:
                return await work()
            finally:
                self._end(client)
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        task.add_done_callback(partial(self._end_task, client))
        try:
            return await asyncio.shield(task)
        finally:
            # Without the deletion, the error's traceback refers to this frame, and the frame to the
            # error.
            del task

    def _end_task(self, client: Hashable, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # asyncio logs an exception that nobody retrieves, and the client may have disconnected.
            task.exception()
        self._end(client)

    async def _wait(self, peer: str, client: Hashable) -> None:
        if not self._turn_is_taken and not self._waiting and self._may_begin(client):
            self._begin(client)
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            ticket = self._waiting.add(peer, 0, admitted, client)
        except QueueFullError as error:
            raise Unavailable(_TOO_MANY, retry_after_ms=DEFAULT_MS) from error
        self._end_turn_later()
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._end(client)
            raise
        finally:
            self._waiting.discard(ticket)

    def _may_begin(self, client: Hashable) -> bool:
        return self._in_progress[client] < self._max_in_progress

    def _begin(self, client: Hashable) -> None:
        self._in_progress[client] += 1
        self._end_turn_later()

    def _end_turn_later(self) -> None:
        if not self._turn_is_taken:
            self._turn_is_taken = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_is_taken = False
        while (ticket := self._waiting.peek(self._may_begin)) is not None:
            admitted = self._waiting.take_ticket(ticket)
            if not admitted.done():
                self._begin(ticket.client)
                admitted.set_result(None)
                return

    def _end(self, client: Hashable) -> None:
        self._in_progress[client] -= 1
        if not self._in_progress[client]:
            del self._in_progress[client]
        if self._waiting:
            self._end_turn_later()
