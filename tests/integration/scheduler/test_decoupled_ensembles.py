"""Ensembles with decoupled models among their steps: any number of responses to a request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nereid.core.wire.messages import FlowControl
from nereid.pb import nereid_pb2 as pb
from tests.support.scheduler.doubler_ensembles import ensemble, step
from tests.support.scheduler.ensemble_configs import save_ensemble
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    Executor,
    Gateway,
    Instance,
    World,
    add_model,
    request,
    world,
)

MANY = CONFIG + "model_transaction_policy { decoupled: true }\n"
# Each response of the first model goes through the second.
MANY_FIRST = ensemble(step("many", "INPUT0", "m"), step("plain", "m", "OUTPUT0"))


class Site:
    """An ensemble `e`, an executor that responds when the test says so, and a gateway."""

    def __init__(self, it: World, executor: Executor, gateway: Gateway) -> None:
        self.world, self.executor, self.gateway = it, executor, gateway

    def ask(self, *numbers: float, **fields: Any) -> None:
        self.gateway.send(request(*numbers, model="e", accepts_many=True, **fields))

    async def batch(self, model: str) -> tuple[Instance, pb.Batch]:
        instance, batch = await self.executor.batch()
        assert instance.load.config.name == model
        return instance, batch

    async def plain(self, count: int) -> None:
        """Respond to so many batches of the ordinary model."""
        for _ in range(count):
            instance, batch = await self.batch("plain")
            instance.response(batch)

    async def control(self) -> str:
        assert self.executor.controls is not None
        return (await asyncio.wait_for(self.executor.controls.get(), LIMIT_S))[2]


@contextlib.asynccontextmanager
async def site(tmp_path: Path, config: str = MANY_FIRST) -> AsyncIterator[Site]:
    repository = tmp_path / "models"
    add_model(repository, "many", MANY)
    add_model(repository, "plain", CONFIG)
    save_ensemble(repository, "e", config)
    async with world(repository) as it:
        executor = await it.executor(hold=True, controls=True)
        await it.until_state("READY", "e")
        yield Site(it, executor, await it.gateway())


async def test_a_step_that_fails_ends_the_request(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        at.ask()
        instance, batch = await at.batch("many")
        instance.send_responses(batch, (0, 1, True), busy=True)
        await at.plain(1)
        assert await at.gateway.next_responses(1) == [(1, 2, True)]
        instance.send_responses(batch, (0, -1, True), busy=True)
        await at.plain(1)
        assert await at.gateway.next_responses(1) == [(1, "in ensemble 'e', negative", False)]
        assert await at.control() == "CANCEL"


@pytest.mark.parametrize("most", [1, 4])
async def test_a_decoupled_step_is_paused_while_the_next_ones_cannot_keep_up(
    tmp_path: Path, most: int
) -> None:
    limit = f"ensemble_scheduling {{ max_inflight_requests: {most}\n"
    async with site(tmp_path, MANY_FIRST.replace("ensemble_scheduling {\n", limit)) as at:
        at.ask()
        instance, batch = await at.batch("many")
        for number in range(most):
            instance.send_responses(batch, (0, number, True), busy=True)
        assert await at.control() == "PAUSE"
        # A response that was already sent is not lost.
        instance.send_responses(batch, (0, 9, True), busy=True)
        await at.plain(most // 2 + 1)
        if most == 1:
            await at.plain(1)
        assert await at.control() == "RESUME"
        instance.send_responses(batch, (0, None))
        await at.plain(most - most // 2 - (most == 1))
        responses = await at.gateway.next_responses(most + 1)
        assert [what for _, what, _ in responses] == [*range(0, 2 * most, 2), 18]


async def test_a_client_that_cannot_keep_up_makes_the_model_wait(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        at.ask()
        instance, batch = await at.batch("many")
        at.gateway.link.send(FlowControl(1, paused=True))
        assert await at.control() == "PAUSE"
        at.gateway.link.send(FlowControl(1, paused=False))
        assert await at.control() == "RESUME"
        instance.send_responses(batch, (0, None))
        await at.gateway.next_responses(1)
