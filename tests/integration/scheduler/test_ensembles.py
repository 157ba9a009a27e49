"""Ensembles in a scheduler, with executors that respond at once or when the test says so."""

import asyncio
from pathlib import Path

import pytest

from nereid.rpc import Status
from tests.support.scheduler.doubler_ensembles import add_ensembles
from tests.support.scheduler.scheduler_world import (
    LIMIT_S,
    World,
    error_status_of,
    numbers_of,
    request,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    add_ensembles(path)
    return path


async def test_steps_share_batches_with_each_other_and_with_other_requests(mesh: World) -> None:
    executor = await mesh.executor(hold=True)
    gateway = await mesh.gateway()
    first = gateway.send(request(1, 1))
    instance, batch = await executor.batch()
    # While the instance is busy, one more request of a client and two ensembles' steps arrive.
    others = [
        gateway.send(request(2, 2)),
        gateway.send(request(3, 3, model="fourfold")),
        gateway.send(request(4, 4, model="fourfold")),
    ]
    await gateway.arrived()
    instance.response(batch)
    instance, batch = await executor.batch()
    assert executor.seen[-1] == [[2, 2], [3, 3], [4, 4]]
    instance.response(batch)
    for _ in range(2):
        instance, batch = await executor.batch()
        assert instance.load.config.name == "second"
        instance.response(batch)
    responses = await asyncio.gather(first, *others)
    assert [numbers_of(each) for each in responses] == [[2, 2], [4, 4], [12, 12], [16, 16]]


async def test_a_step_that_fails_ends_the_request_and_names_the_ensemble(mesh: World) -> None:
    await mesh.executor()
    gateway = await mesh.gateway()
    error_status = error_status_of(await gateway.ask(-1, 2, model="fourfold", request_id="r"))
    assert (error_status.code, error_status.accepted) == (Status.INTERNAL, True)
    assert error_status.message == "in ensemble 'fourfold', negative"
    error_status = error_status_of(await gateway.ask(-1, 2, model="outer"))
    assert error_status.message == "in ensemble 'outer', in ensemble 'fourfold', negative"
    counts = await mesh.statistics("fourfold")
    assert (counts.inference_stats.fail.count, counts.execution_count) == (2, 0)
    # An error of the ensemble itself reads as any model's.
    error_status = error_status_of(await gateway.ask(*range(10), model="fourfold"))
    assert error_status.message.endswith("inference request batch-size must be <= 4 for 'fourfold'")
    # Too much for a step, but not for the ensemble, which has no batches.
    error_status = error_status_of(await gateway.ask(*range(10), model="outer"))
    assert (error_status.code, error_status.accepted) == (Status.INVALID_ARGUMENT, True)
    assert error_status.message == (
        "in ensemble 'outer', [request id: <id_unknown>] inference request batch-size must be"
        " <= 4 for 'fourfold'"
    )


async def test_the_other_steps_of_a_request_that_failed_are_cancelled(mesh: World) -> None:
    executor = await mesh.executor(hold=True)
    gateway = await mesh.gateway()
    blocker = gateway.send(request(9, 9))
    held = await executor.batch()
    response = gateway.send(request(-1, 2, model="two_ways"))
    # The step by way of `second` fails while the other one waits behind the blocker.
    instance, batch = await executor.batch()
    assert instance.load.config.name == "second"
    instance.response(batch)
    assert error_status_of(await response).message == "in ensemble 'two_ways', negative"
    held[0].response(held[1])
    assert numbers_of(await blocker) == [18, 18]
    after = gateway.send(request(5, 5))
    instance, batch = await executor.batch()
    assert executor.seen[-1] == [[5, 5]]
    instance.response(batch)
    await after


async def test_pending_requests_are_finished_before_the_scheduler_ends(mesh: World) -> None:
    executor = await mesh.executor(hold=True)
    gateway = await mesh.gateway()
    response = gateway.send(request(1, 2, model="fourfold"))
    instance, batch = await executor.batch()
    drain = asyncio.create_task(mesh.service.drain(LIMIT_S))
    await asyncio.sleep(0)
    instance.response(batch)
    instance, batch = await executor.batch()
    instance.response(batch)
    assert numbers_of(await response) == [4, 8]
    await drain
