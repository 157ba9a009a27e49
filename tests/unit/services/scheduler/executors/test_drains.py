"""Executors that are asked to leave, and what they do then."""

from __future__ import annotations

import asyncio

import pytest

from nereid.core.errors import NotFound, Unavailable, Unimplemented
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.drains import Drains
from nereid.services.scheduler.executors.sessions import Session
from tests.support.waiting import until

ASK = pb.DrainExecutorRequest(name="one")


class Join:
    """A Join stream's end at the scheduler."""

    def __init__(self) -> None:
        self.commands: list[pb.ExecutorCommand] = []

    def send(self, message: bytes) -> None:
        self.commands.append(pb.ExecutorCommand.FromString(message))

    def finish(self) -> None: ...


def joined(*, drains: bool = True) -> tuple[Session, Join]:
    join = Join()
    return Session(pb.Hello(name="one", drains=drains), join), join


async def test_callers_share_one_command_and_wait_for_the_executor() -> None:
    session, join = joined()
    drains = Drains(lambda: [session])
    calls = [asyncio.ensure_future(drains.drain(ASK)) for _ in range(2)]
    await until(lambda: join.commands)
    assert not any(call.done() for call in calls)
    session.leaving = True
    drains.on_left(session)
    await asyncio.gather(*calls)
    assert join.commands == [pb.ExecutorCommand(drain=pb.Drain())]


async def test_an_unknown_executor_is_not_found() -> None:
    drains = Drains(lambda: [joined()[0]])
    with pytest.raises(NotFound, match="no executor 'none' has joined"):
        await drains.drain(pb.DrainExecutorRequest(name="none"))


async def test_an_older_release_is_named() -> None:
    session, join = joined(drains=False)
    with pytest.raises(Unimplemented, match=r"of an older release.*SIGTERM"):
        await Drains(lambda: [session]).drain(ASK)
    assert not join.commands


async def test_an_executor_that_is_lost_first_is_no_success() -> None:
    session, join = joined()
    drains = Drains(lambda: [session])
    call = asyncio.ensure_future(drains.drain(ASK))
    await until(lambda: join.commands)
    drains.on_left(session)
    with pytest.raises(Unavailable, match="was lost before it left"):
        await call


async def test_an_executor_that_hangs_is_waited_for_so_long_and_asked_once() -> None:
    session, join = joined()
    drains = Drains(lambda: [session], confirm_limit_s=0.01)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"not confirmed within 0.01 s"):
            await drains.drain(ASK)
    assert len(join.commands) == 1
