"""Allowance of bytes for decoding medium-sized requests in one turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from nereid.core.errors import Unavailable
from nereid.core.retry_after import DEFAULT_MS
from nereid.rpc.net.limits.fair_queue import FairQueue, QueueFullError
from nereid_gateway.plane.decoding.limits import TURN_BYTES

_MAX_WAITING: Final = 65536
_MAX_WAITING_BYTES: Final = 256 << 20


class LoopTurns:
    """Allowance of each turn of one event loop, and the requests that wait for a turn."""

    def __init__(self, turn_bytes: int = TURN_BYTES) -> None:
        self._turn_bytes = turn_bytes
        self._spent_bytes = 0
        self._waiting = FairQueue[asyncio.Future[None]](
            "requests", _MAX_WAITING, _MAX_WAITING_BYTES
        )
        self._turn_ends = False

    def spend(self, size_bytes: int) -> bool:
        """Charge the request to this turn. Return False if the request has to wait for a turn."""
        if self._waiting or not self._affords(size_bytes):
            return False
        self._charge(size_bytes)
        return True

    async def wait(self, peer: str, size_bytes: int) -> None:
        """Wait until the request fits into a turn. Raises Unavailable if too many wait."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            ticket = self._waiting.add(peer, size_bytes, admitted)
        except QueueFullError as error:
            raise Unavailable(str(error), retry_after_ms=DEFAULT_MS) from error
        self._charge(0)
        try:
            await admitted
        finally:
            self._waiting.discard(ticket)

    def _affords(self, size_bytes: int) -> bool:
        return not self._spent_bytes or self._spent_bytes + size_bytes <= self._turn_bytes

    def _charge(self, size_bytes: int) -> None:
        self._spent_bytes += size_bytes
        if not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turn_ends = False
        self._spent_bytes = 0
        while (ticket := self._waiting.peek()) is not None and self._affords(ticket.size_bytes):
            admitted = self._waiting.take()
            self._charge(ticket.size_bytes)
            if admitted is not None and not admitted.done():
                admitted.set_result(None)
