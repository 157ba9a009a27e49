"""Reads that cost much and that many ask for: one at a time, shared, and with pauses.

Whoever asks gets what was read after it asked, so that nothing is kept that could be out of date.
A read under way is not shared, since it may have begun too early; the next one is, by all who ask
meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

# However long a read took.
_LONGEST_PAUSE_S: Final = 1.0

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class _Read(Generic[V]):
    """One that has not begun. waiters: how many share it."""

    def __init__(self, task: asyncio.Task[V]) -> None:
        self.task = task
        self.waiters = 0


class PacedReads(Generic[K, V]):
    """The reads of one process, by what is read."""

    def __init__(self, read: Callable[[K], Awaitable[V]], *, share: float = 0.2) -> None:
        """share: the part of the time that reads may take, as long as they are asked for."""
        self._read = read
        self._pauses = 1 / share - 1
        self._next: dict[K, _Read[V]] = {}
        self._turn = asyncio.Lock()
        self._not_before_s = 0.0

    async def get(self, key: K) -> V:
        """What a read gives that begins after this call; raises what it raises."""
        read = self._next.get(key)
        if read is None:
            read = _Read(asyncio.ensure_future(self._run(key)))
            self._next[key] = read
        read.waiters += 1
        try:
            return await asyncio.shield(read.task)
        finally:
            read.waiters -= 1
            if not read.waiters and not read.task.done():
                # Nobody waits for it any more.
                read.task.cancel()
                if self._next.get(key) is read:
                    del self._next[key]

    async def _run(self, key: K) -> V:
        loop = asyncio.get_running_loop()
        async with self._turn:
            pause_s = self._not_before_s - loop.time()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            del self._next[key]
            began_s = loop.time()
            try:
                return await self._read(key)
            finally:
                ended_s = loop.time()
                pause_s = min((ended_s - began_s) * self._pauses, _LONGEST_PAUSE_S)
                self._not_before_s = ended_s + pause_s
