"""Waiting in an event loop, with a limit: for an event, or for what has no event of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

LIMIT_S = 20.0


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], limit_s: float = LIMIT_S
) -> None:
    """Until a condition holds, whose value may have to be awaited."""
    async with asyncio.timeout(limit_s):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.001)


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), LIMIT_S)
