"""Calls of a scheduler that replies, that takes its time, and that hangs."""

from __future__ import annotations

import asyncio

import pytest

from nereid.core.errors import NereidError, NotFound, Unavailable
from nereid.core.methods import SCHEDULER
from nereid.mesh_routing.control_calls import (
    call_responsive_scheduler,
    call_scheduler,
    call_scheduler_again,
)
from nereid.rpc import (
    Call,
    ConnectionLostError,
    Handlers,
    NotConnectedError,
    RpcError,
    Status,
)
from tests.support import virtual_time
from tests.support.rpc.local_channel import LocalChannel
from tests.support.virtual_time import VirtualTimeLoop


class Scheduler:
    """Accepts the calls that it is to accept, and replies when it may."""

    def __init__(self, *, accepts: bool = True) -> None:
        self.may_reply = asyncio.Event()
        self.error: RpcError | None = None
        self._accepts = accepts
        handlers = Handlers(async_unary={SCHEDULER + "ModelReady": self._reply})
        self.channel = LocalChannel(handlers)

    async def _reply(self, call: Call, message: bytes) -> bytes:
        if self._accepts:
            call.accept()
        await self.may_reply.wait()
        if self.error is not None:
            raise self.error
        return message + b" ready"

    async def ask(self, accept_s: float = 10.0, timeout_s: float = 10.0) -> bytes:
        return await call_responsive_scheduler(
            self.channel, "ModelReady", b"m", accept_s=accept_s, timeout_s=timeout_s
        )


async def test_a_scheduler_that_accepts_may_take_longer() -> None:
    scheduler = Scheduler()
    asking = asyncio.ensure_future(scheduler.ask(accept_s=0.05))
    with pytest.raises(Unavailable, match="does not reply"):
        await Scheduler(accepts=False).ask(accept_s=0.1)
    assert not asking.done()
    scheduler.may_reply.set()
    assert await asking == b"m ready"


async def _ask_around_a_pause() -> None:
    scheduler = Scheduler()
    scheduler.may_reply.set()
    asking = asyncio.ensure_future(scheduler.ask(accept_s=1.0))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    # The process does nothing meanwhile, and so reads no reply.
    loop.now_s += 3.0
    assert await asking == b"m ready"


def test_a_pause_of_the_caller_is_no_silence_of_the_scheduler() -> None:
    virtual_time.run(_ask_around_a_pause())


async def test_but_not_longer_than_any_call() -> None:
    with pytest.raises(Unavailable, match="does not reply"):
        await Scheduler().ask(timeout_s=0.01)


async def test_its_errors_are_those_of_any_call() -> None:
    scheduler = Scheduler()
    scheduler.may_reply.set()
    assert await scheduler.ask() == b"m ready"
    scheduler.error = RpcError(Status.NOT_FOUND, "no such model")
    for call in (scheduler.ask(), call_scheduler(scheduler.channel, "ModelReady", b"", 10.0)):
        with pytest.raises(NotFound, match="no such model"):
            await call


async def test_a_scheduler_that_cannot_be_reached() -> None:
    scheduler = Scheduler()
    await scheduler.channel.close()
    with pytest.raises(NereidError):
        await scheduler.ask()


class Schedulers:
    """One after another, each by what becomes of a call of it."""

    def __init__(self, *outcomes: bytes | RpcError) -> None:
        self.outcomes = list(outcomes)

    async def unary(self, path: str, message: bytes, *, timeout_s: float | None = None) -> bytes:
        assert (path, message, timeout_s) == (SCHEDULER + "LogSettings", b"m", 3.0)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, RpcError):
            raise outcome
        return outcome

    async def change(self, reconnect_s: float = 10.0) -> bytes:
        return await call_scheduler_again(
            self,  # type: ignore[arg-type]
            "LogSettings",
            b"m",
            3.0,
            reconnect_s=reconnect_s,
        )


LOST = ConnectionLostError(Status.UNAVAILABLE, "connection lost")
AWAY = NotConnectedError(Status.UNAVAILABLE, "cannot connect to a secret place")


async def test_a_change_whose_scheduler_is_lost_goes_to_the_next() -> None:
    schedulers = Schedulers(LOST, AWAY, b"done", b"twice")
    assert await schedulers.change() == b"done"
    assert schedulers.outcomes == [b"twice"]


async def test_a_change_that_may_have_ended_two_schedulers_is_not_sent_again() -> None:
    schedulers = Schedulers(LOST, LOST, b"done")
    with pytest.raises(Unavailable, match="repeat the call"):
        await schedulers.change()
    assert schedulers.outcomes == [b"done"]


async def test_a_change_does_not_wait_for_a_scheduler_for_ever() -> None:
    with pytest.raises(Unavailable, match="repeat the call"):
        await Schedulers(LOST, AWAY).change(reconnect_s=0.0)


async def test_what_a_scheduler_replies_ends_a_change() -> None:
    refused = RpcError(Status.NOT_FOUND, "no such model")
    for outcomes in ([refused], [LOST, refused]):
        with pytest.raises(NotFound, match="no such model"):
            await Schedulers(*outcomes).change()


async def test_a_change_that_reaches_no_scheduler_has_not_begun() -> None:
    with pytest.raises(Unavailable, match=r"^the scheduler cannot be reached$"):
        await Schedulers(AWAY).change()
