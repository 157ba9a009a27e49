"""The process that compares responses."""

import asyncio
import os
import signal
from typing import Any

import pytest
import uvloop

from nereid.comparison.process import ComparisonProcess
from nereid.comparison.responses import Exchange, Response, Tensor
from nereid.comparison.rules import parse_rules
from nereid.comparison.tally import TallyOptions
from nereid.core.errors import Unavailable


def exchange(model: str, size: int = 4) -> Exchange:
    old, new = (Response({"y": Tensor("UINT8", (size,), bytes([v]) * size)}) for v in (1, 2))
    return Exchange(model, {}, [old], [new])


async def await_compared(process: ComparisonProcess, number: int) -> dict[str, Any]:
    """The report, as soon as so many exchanges were compared."""
    document: dict[str, Any] = {"compared": 0}
    async with asyncio.timeout(30):
        while document["compared"] < number:
            document = await process.document()
    assert document["compared"] == number
    return document


async def test_exchanges_are_compared_in_the_process() -> None:
    process = ComparisonProcess(parse_rules({}), TallyOptions(), max_queued_bytes=1 << 20)
    await process.start()
    try:
        for _ in range(10):
            assert process.submit("m", exchange("m"), 0)
        document = await await_compared(process, 10)
    finally:
        await process.close()
    assert document["differing"] == 10


async def test_what_does_not_fit_is_counted() -> None:
    process = ComparisonProcess(parse_rules({}), TallyOptions(), max_queued_bytes=0)
    await process.start()
    try:
        # No turn of the event loop in between: the second exchange finds the first one unsent.
        assert process.submit("m", exchange("m", 8 << 20), 8 << 20)
        assert not process.submit("m", exchange("m"), 0)
        document = await await_compared(process, 1)
    finally:
        await process.close()
    assert document["not_compared"] == {"the queue was full": 1}


async def test_a_process_that_is_killed_harms_nobody() -> None:
    process = ComparisonProcess(parse_rules({}), TallyOptions(), max_queued_bytes=1 << 20)
    await process.start()
    try:
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGKILL)
        await process._process.wait()
        process.submit("m", exchange("m"), 0)
        with pytest.raises(Unavailable):
            await process.document()
    finally:
        await process.close()


def test_questions_that_wait_when_the_process_ends_are_unavailable() -> None:
    """With uvloop, whose closed transports raise errors of their own."""

    async def ask() -> None:
        process = ComparisonProcess(parse_rules({}), TallyOptions(), max_queued_bytes=1 << 20)
        await process.start()
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGSTOP)
        # The second one waits until the first one has its reply.
        questions = [asyncio.ensure_future(process.checkpoint()) for _ in range(2)]
        await asyncio.sleep(0)
        await process.close()
        for question in questions:
            with pytest.raises(Unavailable):
                await question

    uvloop.run(ask())


async def test_a_process_that_is_started_anew_goes_on_from_the_last_checkpoint() -> None:
    process = ComparisonProcess(parse_rules({}), TallyOptions(), max_queued_bytes=1 << 20)
    await process.start()
    try:
        process.submit("m", exchange("m"), 0)
        await await_compared(process, 1)
        await process.close()
        # Refused, and counted by the next process.
        assert not process.submit("n", exchange("n"), 0)
        with pytest.raises(Unavailable):
            await process.document()
        await process.start()
        process.submit("m", exchange("m"), 0)
        document = await await_compared(process, 2)
        assert document["not_compared"] == {"the queue was full": 1}
    finally:
        await process.close()
