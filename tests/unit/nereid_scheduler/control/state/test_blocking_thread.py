"""A thread for calls that may hang."""

import asyncio
import threading

import pytest

from nereid_scheduler.control.state.blocking_thread import BlockingThread

LIMIT_S = 10.0


async def test_calls_run_one_after_another_and_return_or_raise() -> None:
    thread = BlockingThread("tests")
    threads: list[str] = []

    def call(number: int) -> int:
        threads.append(threading.current_thread().name)
        return 6 // number

    first, second = thread.run(call, 2), thread.run(call, 3)
    assert tuple(await asyncio.gather(first, second)) == (3, 2)
    with pytest.raises(ZeroDivisionError):
        await thread.run(call, 0)
    assert threads == ["tests"] * 3
    thread.close()


async def test_a_call_that_is_given_up_goes_on() -> None:
    thread = BlockingThread("tests")
    entered, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        loop.call_soon_threadsafe(entered.set)
        may_end.wait(LIMIT_S)

    hanging = asyncio.create_task(thread.run(hang))
    await asyncio.wait_for(entered.wait(), LIMIT_S)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    may_end.set()
    assert await asyncio.wait_for(thread.run(lambda: 1), LIMIT_S) == 1
    thread.close()


def test_a_call_that_outlasts_its_loop_harms_nobody() -> None:
    thread = BlockingThread("tests")
    may_end = threading.Event()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(thread.run(may_end.wait, LIMIT_S), 0.01)

    asyncio.run(give_up())
    may_end.set()

    async def go_on() -> int:
        return await asyncio.wait_for(thread.run(lambda: 1), LIMIT_S)

    assert asyncio.run(go_on()) == 1
    thread.close()
