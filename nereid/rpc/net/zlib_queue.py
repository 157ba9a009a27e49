"""Compression and decompression of large contents in a thread, in turns of the clients.

During a slice, zlib releases the interpreter's lock.
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
        """Inflate a whole content in turns of the client `peer`.

        After each slice, `hold` is called with the number of new bytes. Its exceptions, and those
        of Inflation.inflate(), are raised here.
        """
        while not inflation.done:
            before = inflation.inflated_bytes
            await self.run_slice(peer, inflation.inflate)
            hold(inflation.inflated_bytes - before)

    async def run_slice(self, peer: str, run: Callable[[], None]) -> None:
        """Run a slice of a few milliseconds in a turn of the client; raise its exceptions."""
        await self._take_turn(peer)
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, run)
        finally:
            self._end_turn()

    def close(self) -> None:
        """Stop the thread."""
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
