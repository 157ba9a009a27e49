"""Who waits for loads, and until when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from nereid_scheduler.placement.loads.load_waiters import LoadWaiters
from tests.support import virtual_time
from tests.support.waiting import LIMIT_S


class World:
    def __init__(self) -> None:
        self.finished: set[str] = set()
        self.waiters = LoadWaiters(lambda served: served.name in self.finished)

    def wait(self, *versions: object, limit_s: float | None = None) -> asyncio.Task[bool]:
        return asyncio.create_task(self.waiters.wait_for_loads(cast("Any", versions), limit_s))


def version(name: str, *, loading: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name=name, life=SimpleNamespace(loading=loading))


async def test_all_versions_are_waited_for_by_whoever_waits() -> None:
    it = World()
    one, both = it.wait(version("a")), it.wait(version("a"), version("b"))
    gone = it.wait(version("b"))
    await asyncio.sleep(0)
    gone.cancel()
    it.finished.add("a")
    it.waiters.notify_all()
    assert await asyncio.wait_for(one, LIMIT_S)
    assert not both.done()
    it.finished.add("b")
    it.waiters.notify_all()
    assert await asyncio.wait_for(both, LIMIT_S)
    assert await it.wait()


async def _check_limit() -> None:
    it, loop = World(), asyncio.get_running_loop()
    assert not await it.wait(version("a"), limit_s=1.0)
    assert loop.time() == 1.0
    tried = version("a", loading=True)
    waiting = it.wait(tried, limit_s=1.0)
    for _ in range(3):
        await asyncio.sleep(0.75)
        it.waiters.notify_all()
    assert not waiting.done()
    tried.life.loading = False
    assert not await waiting
    # It was loading when they looked last, at 2.5 s.
    assert loop.time() == 3.5


def test_the_limit_counts_while_no_executor_tries() -> None:
    virtual_time.run(_check_limit())
