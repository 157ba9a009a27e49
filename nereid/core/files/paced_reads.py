"""Expensive reads that many callers request: one at a time, shared, and with pauses.

A caller gets data that was read after its call, so that nothing is kept that could be out of date.
A read in progress is not shared, since it may have begun too early; the next read is shared by all
that call meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

# Maximum pause, however long a read took.
_MAX_PAUSE_S: Final = 1.0

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class _Read(Generic[V]):
    """Read that has not begun; `waiters` counts the callers that share it."""

    def __init__(self, task: asyncio.Task[V]) -> None:
        self.task = task
        self.waiters = 0


class PacedReads(Generic[K, V]):
    """Reads of one process, by key."""

    def __init__(self, read: Callable[[K], Awaitable[V]], *, share: float = 0.2) -> None:
        """Pace `read`; `share` is the part of the time that reads may take while requested."""
        self._read = read
        self._pauses = 1 / share - 1
        self._next: dict[K, _Read[V]] = {}
        self._turn = asyncio.Lock()
        self._not_before_s = 0.0

    async def get(self, key: K) -> V:
        """Return the result of a read that begins after this call; its exception is raised."""
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
                # No caller waits for the read any more.
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
                pause_s = min((ended_s - began_s) * self._pauses, _MAX_PAUSE_S)
                self._not_before_s = ended_s + pause_s
