"""Descriptions that take long, or for ever, beside others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from nereid.core.errors import Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid_executor.instances.description_runs import DescriptionLimits, DescriptionRuns
from tests.support.waiting import LIMIT_S

PATIENT = 3600.0


def described() -> pb.Described:
    return pb.Described(command=1)


class Stuck:
    """Work that ends when the test says so."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()

    def __call__(self) -> pb.Described:
        self.begun.set()
        self.released.wait()
        return described()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    work = Stuck()
    yield work
    work.released.set()


async def test_one_that_hangs_does_not_hold_up_others(stuck: Stuck) -> None:
    runs = DescriptionRuns(DescriptionLimits(PATIENT, 2))
    first = runs.submit("a", stuck, runs_code=False)
    assert await asyncio.wait_for(runs.submit("b", described, runs_code=False), LIMIT_S)
    stuck.released.set()
    assert await asyncio.wait_for(first, LIMIT_S)


@pytest.mark.parametrize("runs_code", [True, False])
async def test_slow_ones_make_way(stuck: Stuck, *, runs_code: bool) -> None:
    code_s, reading_s = (0.01, PATIENT) if runs_code else (PATIENT, 0.01)
    runs = DescriptionRuns(DescriptionLimits(PATIENT, 1, code_s=code_s, reading_s=reading_s))
    runs.submit("a", stuck, runs_code=runs_code)
    assert await asyncio.wait_for(runs.submit("b", described, runs_code=False), LIMIT_S)


async def test_one_that_takes_too_long_is_given_up(stuck: Stuck) -> None:
    runs = DescriptionRuns(DescriptionLimits(0.01, 1))
    with pytest.raises(Unavailable, match=r"'a' was not described within 0.01 s: its own code"):
        await asyncio.wait_for(runs.submit("a", stuck, runs_code=True), LIMIT_S)
    assert await asyncio.wait_for(runs.submit("b", described, runs_code=False), LIMIT_S)


async def test_those_that_never_end_are_bounded(stuck: Stuck) -> None:
    runs = DescriptionRuns(DescriptionLimits(0.01, 1, threads=1))
    with pytest.raises(Unavailable, match="not described"):
        await asyncio.wait_for(runs.submit("a", stuck, runs_code=False), LIMIT_S)
    with pytest.raises(Unavailable, match="'b' cannot be described: 1 other models take too long"):
        await asyncio.wait_for(runs.submit("b", described, runs_code=False), LIMIT_S)


async def test_what_fails_unexpectedly_is_its_result() -> None:
    def fail() -> pb.Described:
        raise ZeroDivisionError

    runs = DescriptionRuns(DescriptionLimits(PATIENT, 1))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(runs.submit("a", fail, runs_code=False), LIMIT_S)


async def test_none_begins_after_the_end(stuck: Stuck) -> None:
    runs = DescriptionRuns(DescriptionLimits(PATIENT, 1))
    runs.submit("a", stuck, runs_code=False)
    waiting = runs.submit("b", described, runs_code=False)
    runs.close()
    assert waiting.cancelled()
