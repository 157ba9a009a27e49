"""Who shares a read, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from nereid.core.files.paced_reads import PacedReads
from tests.support import virtual_time


class Page:
    """Counts the reads that have begun; each lasts until it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.cancelled = 0
        self._changed = asyncio.Event()
        self._gates: list[asyncio.Future[None]] = []

    async def read(self, key: str) -> tuple[str, int]:
        self.begun += 1
        number = self.begun
        gate = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        self._changed.set()
        try:
            await gate
        except asyncio.CancelledError:
            self._gates.remove(gate)
            self.cancelled += 1
            raise
        finally:
            self.ended += 1
        return key, number

    async def wait_for(self, begun: int) -> None:
        while self.begun < begun:
            self._changed.clear()
            await self._changed.wait()

    def let_go(self, error: Exception | None = None) -> None:
        gate = self._gates.pop(0)
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(error)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def ask(
    reads: PacedReads[str, tuple[str, int]], keys: Iterable[str]
) -> list[asyncio.Task[tuple[str, int]]]:
    return [asyncio.ensure_future(reads.get(key)) for key in keys]


async def test_all_who_ask_before_a_read_begins_share_it() -> None:
    page = Page()
    reads = PacedReads(page.read, share=1)
    tasks = ask(reads, "aaa")
    await page.wait_for(1)
    page.let_go()
    assert await asyncio.gather(*tasks) == [("a", 1)] * 3


async def test_who_asks_while_it_is_read_gets_the_next_read() -> None:
    page = Page()
    reads = PacedReads(page.read, share=1)
    first = ask(reads, "a")
    await page.wait_for(1)
    later = ask(reads, "aa")
    await settle()
    assert page.begun == 1
    page.let_go()
    await page.wait_for(2)
    page.let_go()
    assert await asyncio.gather(*first, *later) == [("a", 1), ("a", 2), ("a", 2)]


async def test_reads_of_different_things_take_turns() -> None:
    page = Page()
    reads = PacedReads(page.read, share=1)
    tasks = ask(reads, "abc")
    for number in range(1, 4):
        await page.wait_for(number)
        assert page.begun - page.ended == 1
        page.let_go()
        await settle()
    assert await asyncio.gather(*tasks) == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("begun", [False, True])
async def test_what_nobody_waits_for_is_cancelled(*, begun: bool) -> None:
    page = Page()
    reads = PacedReads(page.read, share=1)
    held = ask(reads, "b")
    await page.wait_for(1)
    tasks = ask(reads, "aa")
    await settle()
    if begun:
        page.let_go()
        await page.wait_for(2)
    tasks[0].cancel()
    await settle()
    assert page.cancelled == 0
    tasks[1].cancel()
    await settle()
    assert page.cancelled == begun
    # Others still have their turn.
    if not begun:
        page.let_go()
    last = ask(reads, "a")
    await page.wait_for(2 + begun)
    page.let_go()
    assert [each[0] for each in await asyncio.gather(*held, *last)] == ["b", "a"]


async def test_all_who_share_a_read_get_its_error() -> None:
    page = Page()
    reads = PacedReads(page.read, share=1)
    tasks = ask(reads, "aa")
    await page.wait_for(1)
    page.let_go(OSError("gone"))
    assert [str(each) for each in await asyncio.gather(*tasks, return_exceptions=True)] == [
        "gone"
    ] * 2


def test_the_next_read_waits_in_proportion_to_the_last() -> None:
    began_s = []

    async def read(duration_s: float) -> None:
        began_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(duration_s)

    async def read_in_turn() -> None:
        reads = PacedReads(read, share=0.25)
        for duration_s in (0.125, 0.25, 60.0, 0.0):
            await reads.get(duration_s)

    virtual_time.run(read_in_turn())
    # However long a read took, the pause is no longer than a second.
    assert began_s == [0.0, 0.5, 1.5, 62.5]
