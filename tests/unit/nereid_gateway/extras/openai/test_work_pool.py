"""Threads for texts, which clients use in turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nereid_gateway.extras.openai.work_pool import WorkPool
from nereid_gateway.server.call import HttpCall


@pytest.fixture
def pool() -> Iterator[WorkPool]:
    made = WorkPool(1)
    yield made
    made.close()


def call_of(peer: str) -> HttpCall:
    return HttpCall(lambda: None, peer)


async def test_clients_take_turns(pool: WorkPool) -> None:
    release = threading.Event()
    order: list[str] = []
    jobs: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(pool.run(call_of("1.1.1.1:1"), 1, release.wait))
    ]
    await asyncio.sleep(0)
    for name, peer in (("a1", "2.2.2.2:1"), ("a2", "2.2.2.2:1"), ("b1", "3.3.3.3:1")):
        jobs.append(asyncio.ensure_future(pool.run(call_of(peer), 1, order.append, name)))
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*jobs)
    assert order == ["a1", "b1", "a2"]


async def test_a_cancelled_caller_leaves_its_thread_busy_until_it_is_done(pool: WorkPool) -> None:
    release = threading.Event()
    first = asyncio.ensure_future(pool.run(call_of("1.1.1.1:1"), 1, release.wait))
    second = asyncio.ensure_future(pool.run(call_of("1.1.1.1:1"), 1, lambda: "second"))
    third = asyncio.ensure_future(pool.run(call_of("1.1.1.1:1"), 1, lambda: "third"))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.wait([first, second])
    assert not third.done()
    release.set()
    assert await third == "third"
    assert await pool.run(call_of("1.1.1.1:1"), 1, lambda: "fourth") == "fourth"


async def test_an_exception_of_a_job_is_its_callers_alone(pool: WorkPool) -> None:
    with pytest.raises(ZeroDivisionError):
        await pool.run(call_of("1.1.1.1:1"), 1, lambda: 1 // 0)
    assert await pool.run(call_of("1.1.1.1:1"), 1, lambda: "next") == "next"
