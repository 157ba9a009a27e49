"""Control calls begin in turn, by client, and are dropped with their clients."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from nereid.core.errors import Unavailable
from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from nereid_gateway.plane.control.control_queue import ControlQueue
from tests.support.waiting import until

A, B = "10.0.0.1:1", "10.0.0.2:1"


class Calls:
    """Calls that end when the test says so, and the order in which they have begun."""

    def __init__(self, queue: ControlQueue) -> None:
        self._queue = queue
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def start(
        self, name: str, peer: str, principal: object = None, *, survives_disconnect: bool = False
    ) -> asyncio.Task[str]:
        self._ends[name] = asyncio.Event()
        work = partial(self._work, name)
        return asyncio.ensure_future(
            self._queue.run(peer, work, principal, survives_disconnect=survives_disconnect)
        )

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()

    async def _work(self, name: str) -> str:
        self.begun.append(name)
        try:
            await self._ends[name].wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        return name


async def test_one_begins_in_each_turn_of_the_loop() -> None:
    calls = Calls(ControlQueue())
    tasks = [calls.start(f"a{number}", A) for number in range(3)]
    await asyncio.sleep(0)
    assert calls.begun == ["a0"]
    await until(lambda: len(calls.begun) == 3)
    calls.end("a0", "a1", "a2")
    assert await asyncio.gather(*tasks) == ["a0", "a1", "a2"]


async def test_clients_take_turns() -> None:
    calls = Calls(ControlQueue())
    tasks = [calls.start(f"a{number}", A) for number in range(4)]
    tasks += [calls.start("b0", B), calls.start("b1", B)]
    await until(lambda: len(calls.begun) == 6)
    assert calls.begun == ["a0", "a1", "b0", "a2", "b1", "a3"]
    calls.end(*calls.begun)
    await asyncio.gather(*tasks)


async def test_a_client_with_all_its_calls_in_progress_keeps_no_other_waiting() -> None:
    calls = Calls(ControlQueue(max_in_progress=2))
    tasks = [calls.start(f"a{number}", A) for number in range(3)]
    await until(lambda: len(calls.begun) == 2)
    tasks.append(calls.start("b0", B))
    await until(lambda: len(calls.begun) == 3)
    assert calls.begun == ["a0", "a1", "b0"]
    calls.end("a0")
    await until(lambda: len(calls.begun) == 4)
    assert calls.begun[-1] == "a2"
    calls.end("a1", "a2", "b0")
    await asyncio.gather(*tasks)


async def test_a_principal_is_one_client_at_all_its_addresses() -> None:
    calls = Calls(ControlQueue(max_in_progress=1))
    principal = object()
    first = calls.start("first", A, principal)
    second = calls.start("second", B, principal)
    other = calls.start("other", A)
    await until(lambda: len(calls.begun) == 2)
    assert calls.begun == ["first", "other"]
    calls.end("first", "second", "other")
    await asyncio.gather(first, second, other)


async def test_too_many_are_refused_without_having_begun() -> None:
    calls = Calls(ControlQueue(max_waiting=4, max_in_progress=1))
    tasks = [calls.start(f"a{number}", A) for number in range(4)]
    with pytest.raises(Unavailable, match="too many control calls are waiting; wait for"):
        await tasks[3]
    # Another client's are not.
    tasks[3] = calls.start("b0", B)
    await until(lambda: calls.begun == ["a0", "b0"])
    calls.end("a0", "a1", "a2", "b0")
    await asyncio.gather(*tasks)


async def test_one_whose_client_left_never_begins() -> None:
    calls = Calls(ControlQueue(max_in_progress=1))
    first, second, third = (calls.start(name, A) for name in ("first", "second", "third"))
    await until(lambda: calls.begun == ["first"])
    second.cancel()
    first.cancel()
    await until(lambda: calls.begun == ["first", "third"])
    assert calls.cancelled == ["first"]
    calls.end("third")
    assert await third == "third"


async def test_one_that_goes_on_counts_until_it_is_done() -> None:
    calls = Calls(ControlQueue(max_in_progress=1))
    load = calls.start("load", A, survives_disconnect=True)
    await until(lambda: calls.begun == ["load"])
    load.cancel()
    after = calls.start("after", A)
    for _ in range(5):
        await asyncio.sleep(0)
    assert calls.begun == ["load"]
    calls.end("load", "after")
    assert await after == "after"
    assert calls.cancelled == []


async def test_one_that_fails_makes_way() -> None:
    queue = ControlQueue(max_in_progress=1)

    async def fail() -> None:
        raise Unavailable("no")

    for _ in range(2):
        with pytest.raises(Unavailable, match="no"):
            await queue.run(A, fail)


async def test_nothing_begins_for_a_client_that_leaves_too_much_unread() -> None:
    limits = BudgetLimits(connection_bytes=100, client_bytes=100, total_bytes=1000)
    account = ByteBudget(limits, lambda: 0).open_account("10.0.0.1")
    queue = ControlQueue()

    async def work() -> str:
        return "done"

    account.set_unread(101)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await queue.run(A, work, account=account)
    assert await queue.run(B, work) == "done"
    account.set_unread(0)
    assert await queue.run(A, work, account=account) == "done"
