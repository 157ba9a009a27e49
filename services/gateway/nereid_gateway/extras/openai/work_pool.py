"""Threads for work on texts and vectors, which clients use in turn."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nereid.core.errors import Unavailable
from nereid.core.retry_after import DEFAULT_MS
from nereid.rpc.net.limits.fair_queue import FairQueue, QueueFullError
from nereid_gateway.core.access.principal import principal_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.server.call import HttpCall

Result = TypeVar("Result")

# One client may have half of them.
_MAX_JOBS: Final = 8192
_MAX_BYTES: Final = 1 << 30


class WorkPool:
    """Threads of one gateway. It belongs to one event loop."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, "texts")
        self._idle = threads
        self._waiting = FairQueue[asyncio.Future[None]]("jobs", _MAX_JOBS, _MAX_BYTES)

    async def run(
        self, call: HttpCall, size_bytes: int, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Return function(*arguments), run by a thread when it is this client's turn.

        Raises Unavailable if too many jobs wait.
        """
        await self._wait(call, size_bytes)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, function, *arguments)
        # A cancelled caller does not stop the thread, which is busy until it is done.
        work.add_done_callback(self._on_done)
        try:
            return await asyncio.shield(work)
        finally:
            # An error refers to this frame: texts would stay in memory until cycles are collected.
            del work, function, arguments

    def close(self) -> None:
        """Stop the threads when they have nothing to do."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _wait(self, call: HttpCall, size_bytes: int) -> None:
        if self._idle:
            self._idle -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            ticket = self._waiting.add(call.peer, size_bytes, turn, principal_of(call.sender))
        except QueueFullError as error:
            raise Unavailable(str(error), retry_after_ms=DEFAULT_MS) from error
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end_turn()
            raise
        finally:
            self._waiting.discard(ticket)

    def _on_done(self, work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            # asyncio logs an exception that nobody retrieves, and the caller may be cancelled.
            work.exception()
        self._end_turn()

    def _end_turn(self) -> None:
        while (turn := self._waiting.take()) is not None:
            if not turn.done():
                turn.set_result(None)
                return
        self._idle += 1
