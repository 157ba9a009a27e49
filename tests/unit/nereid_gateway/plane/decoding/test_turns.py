"""What one turn of the event loop may spend, and what waits for a later one."""

from __future__ import annotations

import asyncio

import pytest

from nereid_gateway.plane.decoding.turns import LoopTurns


async def test_a_turn_affords_its_allowance_and_the_next_turn_again() -> None:
    turns = LoopTurns(100)
    assert turns.spend(60)
    assert turns.spend(40)
    assert not turns.spend(1)
    await asyncio.sleep(0)
    assert turns.spend(100)


async def test_a_request_larger_than_the_allowance_has_a_turn_of_its_own() -> None:
    turns = LoopTurns(100)
    turns.spend(500)
    assert not turns.spend(1)


async def test_those_who_wait_are_admitted_by_turns_and_by_peers() -> None:
    turns = LoopTurns(100)
    turns.spend(100)
    order: list[str] = []
    turn = 0

    async def request(peer: str, name: str) -> None:
        await turns.wait(peer, 50)
        order.append(f"{turn}:{name}")

    tasks = [asyncio.create_task(request("a:1", f"a{number}")) for number in range(4)]
    tasks.append(asyncio.create_task(request("b:1", "b0")))
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
    assert [each.partition(":")[2] for each in order] == ["a0", "b0", "a1", "a2", "a3"]
    by_turn = [each.partition(":")[0] for each in order]
    assert max(map(by_turn.count, by_turn)) == 2


async def test_nobody_overtakes_those_who_wait() -> None:
    turns = LoopTurns(100)
    turns.spend(100)
    waiting = asyncio.create_task(turns.wait("a:1", 10))
    await asyncio.sleep(0)
    assert not turns.spend(1)
    await waiting


async def test_a_cancelled_request_leaves_the_queue() -> None:
    turns = LoopTurns(100)
    turns.spend(100)
    cancelled = asyncio.create_task(turns.wait("a:1", 100))
    other = asyncio.create_task(turns.wait("b:1", 100))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await other
    await asyncio.sleep(0)
    assert turns.spend(100)
