"""Expensive reads that many callers ask for: one at a time, shared, with pauses.

A caller gets data that was read after its call, so it never shares a read in progress. All calls
that arrive during a read share the next one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

# Even if the read took very long.
_MAX_PAUSE_S: Final = 1.0

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class _Read(Generic[V]):
    """A read that has not begun."""

    def __init__(self, task: asyncio.Task[V]) -> None:
        self.task = task
        self.waiters = 0


class PacedReads(Generic[K, V]):
    """Reads that are paced together. Callers with the same key share a read."""

    def __init__(self, read: Callable[[K], Awaitable[V]], *, share: float = 0.2) -> None:
        """Pace calls of `read`; `share` (0 to 1) is the maximum share of time that reads take."""
        self._read = read
        self._pauses = 1 / share - 1
        self._next: dict[K, _Read[V]] = {}
        self._turn = asyncio.Lock()
        self._not_before_s = 0.0

    async def get(self, key: K) -> V:
        """Return the result, or raise the exception, of a read that begins after this call."""
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
                read.task.cancel()
                if self._next.get(key) is read:
                    del self._next[key]
            # An error refers to this frame, which would hold it until cycles are collected.
            del read

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
                pause_s = min((ended_s - began_s) * self._pauses, _MAX_PAUSE_S)
                self._not_before_s = ended_s + pause_s
