"""Compression and decompression of large contents in a thread, one slice at a time.

Clients have turns one after the other. During a slice, zlib releases the interpreter's lock.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nereid.rpc.net.limits.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.net.inflation import Inflation


class ZlibQueue:
    """Queue of long compressions and decompressions, run in a thread for one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="zlib")
        self._busy = False
        self._waiting = FairQueue[asyncio.Future[None]]()

    async def inflate(self, peer: str, inflation: Inflation, hold: Callable[[int], None]) -> None:
        """Inflate a whole content, slice by slice, in the turns of the client `peer`.

        hold: called after each slice with the number of new bytes. If it raises an exception, the
            inflation ends and the exception is raised here, like those of Inflation.inflate().
        """
        while not inflation.done:
            before = inflation.inflated_bytes
            await self.run_slice(peer, inflation.inflate)
            hold(inflation.inflated_bytes - before)

    async def run_slice(self, peer: str, run: Callable[[], None]) -> None:
        """Run a slice in a turn of the client. Exceptions of the slice are raised here.

        A slice should take a few milliseconds.
        """
        await self._take_turn(peer)
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, run)
        finally:
            self._end_turn()

    def close(self) -> None:
        """Stop the thread: no more slices are run."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take_turn(self, peer: str) -> None:
        if not self._busy:
            self._busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        ticket = self._waiting.add(peer, 0, turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.discard(ticket)
            if not turn.cancelled():
                self._end_turn()
            raise

    def _end_turn(self) -> None:
        turn = self._waiting.take()
        while turn is not None and turn.done():
            turn = self._waiting.take()
        if turn is None:
            self._busy = False
        else:
            turn.set_result(None)
