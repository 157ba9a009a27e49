"""Decoupled models in a real scheduler, over real sockets: any number of responses to a request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nereid.core.wire.messages import DECOUPLED, ErrorStatus, FlowControl
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    Executor,
    Gateway,
    World,
    add_model,
    error_status_of,
    request,
    world,
)

DECOUPLED_CONFIG = CONFIG + "model_transaction_policy { decoupled: true }\n"
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 60000000 %s }\n"


@contextlib.asynccontextmanager
async def site(
    tmp_path: Path, extra: str = "", **settings: Any
) -> AsyncIterator[tuple[World, Executor, Gateway]]:
    repository = tmp_path / "models"
    add_model(repository, config=DECOUPLED_CONFIG + extra)
    async with world(repository, **settings) as it:
        executor = await it.executor(hold=True, controls=True)
        await it.until_state("READY")
        yield it, executor, await it.gateway()


def ask(gateway: Gateway, *numbers: float, **fields: Any) -> None:
    gateway.send(request(*numbers, accepts_many=True, **fields))


async def test_responses_are_sent_as_they_come(tmp_path: Path) -> None:
    async with site(tmp_path) as (it, executor, gateway):
        ask(gateway)
        instance, batch = await executor.batch()
        instance.send_responses(batch, (0, 1, True), (0, 2, True), busy=True)
        assert await gateway.next_responses(2) == [(1, 1, True), (1, 2, True)]
        instance.send_responses(batch, (0, "one went wrong", True), busy=True)
        assert await gateway.next_responses(1) == [(1, "one went wrong", True)]
        instance.send_responses(batch, (0, None), compute_infer_ns=500)
        assert await gateway.next_responses(1) == [(1, None, False)]
        stats = await it.statistics()
        assert (stats.inference_count, stats.execution_count) == (1, 1)
        inference = stats.inference_stats
        assert (inference.success.count, inference.fail.count, inference.queue.count) == (1, 0, 1)
        assert (inference.compute_infer.count, inference.compute_infer.ns) == (1, 500)
        counts = {
            index: (each.success.count, each.fail.count, each.empty_response.count)
            for index, each in stats.response_stats.items()
        }
        assert counts == {"0": (1, 0, 0), "1": (1, 0, 0), "2": (0, 1, 0), "3": (0, 0, 1)}


@pytest.mark.parametrize("what", [None, 7, "it failed"])
async def test_one_response_may_be_the_first_and_the_last(tmp_path: Path, what: Any) -> None:
    async with site(tmp_path) as (it, executor, gateway):
        ask(gateway)
        instance, batch = await executor.batch()
        instance.send_responses(batch)
        instance.send_responses(batch, (0, what))
        assert await gateway.next_responses(1) == [(1, what, False)]
        # Before it comes an empty response, which marks the model as decoupled.
        assert [(each.more, each.head) for each in gateway.responses[1][:-1]] == [(True, b"")]
        stats = (await it.statistics()).inference_stats
        assert (stats.success.count, stats.fail.count) == (1, 0)


@pytest.mark.parametrize("error_status", [None, ErrorStatus(3, "a malformed body")])
async def test_a_client_that_accepts_one_response_is_refused(
    tmp_path: Path, error_status: ErrorStatus | None
) -> None:
    async with site(tmp_path) as (_, executor, gateway):
        for _ in range(2):
            refused = error_status_of(await gateway.ask(error_status=error_status))
            assert (refused.code, refused.message, refused.accepted) == (12, DECOUPLED, True)
        assert executor.batches.empty()


async def test_drain_waits_for_open_requests_and_then_fails_them(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as (it, executor, gateway):
        ask(gateway)
        instance, batch = await executor.batch()
        instance.send_responses(batch, (0, 1, True))
        await gateway.next_responses(1)
        drained = asyncio.ensure_future(it.service.drain(0.05))
        [(_, text, more)] = await gateway.next_responses(1)
        assert isinstance(text, str)
        assert text.startswith("Server is stopping")
        assert not more
        await drained


async def next_control(executor: Executor) -> tuple[int, int, str]:
    assert executor.controls is not None
    return await asyncio.wait_for(executor.controls.get(), LIMIT_S)


async def test_an_instance_is_notified_of_a_client_that_cannot_keep_up(tmp_path: Path) -> None:
    async with site(tmp_path) as (_, executor, gateway):
        ask(gateway)
        instance, batch = await executor.batch()
        gateway.link.send(FlowControl(1, paused=True))
        assert await next_control(executor) == (batch.id, 0, "PAUSE")
        gateway.link.send(FlowControl(1, paused=False))
        assert await next_control(executor) == (batch.id, 0, "RESUME")
        instance.send_responses(batch, (0, 1))
        await gateway.next_responses(1)
        gateway.link.send(FlowControl(1, paused=True))
        await gateway.arrived()
        assert executor.controls is not None
        assert executor.controls.empty()


@pytest.mark.parametrize("freed", [True, False])
async def test_of_a_lost_instance_requests_with_responses_fail_and_the_others_run_again(
    tmp_path: Path, freed: bool
) -> None:
    batching = BATCHING % "preferred_batch_size: 3"
    async with site(tmp_path, batching) as (it, executor, gateway):
        for number in range(3):
            ask(gateway, number, number)
        instance, batch = await executor.batch()
        instance.send_responses(batch, (0, 1, True), (2, 3), busy=not freed)
        assert await gateway.next_responses(2) == [(1, 1, True), (3, 3, False)]
        await instance.die()
        [(number, text, more)] = await gateway.next_responses(1)
        assert (number, more) == (1, False)
        assert text == (
            "instance 'doubler_0_0' of executor 'one' was lost, 1 responses into the request"
        )
        assert error_status_of(gateway.responses[1][-1]).code == 14
        other = await it.executor("two", hold=True)
        ask(gateway)
        ask(gateway)
        another, again = await other.batch()
        another.send_responses(again, (0, 2))
        assert await gateway.next_responses(1) == [(2, 2, False)]
        stats = (await it.statistics()).inference_stats
        assert (stats.success.count, stats.fail.count) == (2, 1)


@pytest.mark.parametrize("partial", [True, False])
async def test_a_batch_that_fails_as_a_whole(tmp_path: Path, partial: bool) -> None:
    async with site(tmp_path) as (it, executor, gateway):
        ask(gateway, -1, 1)
        instance, batch = await executor.batch()
        instance.send_responses(batch, (0, 1, True), busy=True)
        if partial:
            instance.send_responses(batch, (0, "negative"))
        else:
            instance.response(batch)
        assert await gateway.next_responses(2) == [(1, 1, True), (1, "negative", False)]
        stats = await it.statistics()
        assert (stats.inference_stats.success.count, stats.inference_stats.fail.count) == (0, 1)
        assert (stats.inference_count, stats.execution_count) == (0, 1)


@pytest.mark.parametrize("defect", ["index", "ended", "count", "garbage"])
async def test_a_malformed_message_ends_its_instances_stream(tmp_path: Path, defect: str) -> None:
    async with site(tmp_path) as (_, executor, gateway):
        ask(gateway)
        instance, batch = await executor.batch()
        instance.send_responses(batch, (0, 1, True))
        await gateway.next_responses(1)
        if defect == "index":
            instance.send_responses(batch, (4, 1))
        elif defect == "ended":
            instance.send_responses(batch, (0, 1), (0, 1))
        elif defect == "count":
            instance.response(batch, skip=1)
        else:
            instance.stream.send(b"\xff\xff")
        ((member, text, more),) = await gateway.next_responses(1)
        assert (member, more) == (1, False)
        assert str(text).endswith("was lost, 1 responses into the request")


async def test_a_cancelled_request_is_cancelled_at_its_instance(tmp_path: Path) -> None:
    async with site(tmp_path) as (it, executor, gateway):
        ask(gateway)
        instance, batch = await executor.batch()
        instance.send_responses(batch, (0, 1, True), busy=True)
        await gateway.next_responses(1)
        gateway.cancel()
        assert await next_control(executor) == (batch.id, 0, "CANCEL")
        # The instance is still executing: the next request has to wait.
        ask(gateway)
        instance.send_responses(batch, (0, 2, True), busy=True)
        await gateway.arrived()
        assert executor.batches.empty()
        instance.send_responses(batch, (0, None))
        _, second = await executor.batch()
        instance.send_responses(second, (0, 3))
        assert await gateway.next_responses(1) == [(2, 3, False)]
        assert (await it.statistics()).inference_stats.success.count == 2
