"""Calls of a scheduler that replies, that takes its time, and that hangs."""

from __future__ import annotations

import asyncio
import time

import pytest

from nereid.control_calls import call_responsive_scheduler, call_scheduler
from nereid.core.errors import NereidError, NotFound, Unavailable
from nereid.core.methods import SCHEDULER
from nereid.rpc import Call, Handlers, LocalChannel, RpcError, Status


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


async def test_a_pause_of_the_caller_is_no_silence_of_the_scheduler() -> None:
    scheduler = Scheduler()
    scheduler.may_reply.set()
    asking = asyncio.ensure_future(scheduler.ask(accept_s=0.04))
    await asyncio.sleep(0)
    # The process does nothing meanwhile, and so reads no reply.
    time.sleep(0.1)  # noqa: ASYNC251
    assert await asking == b"m ready"


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
