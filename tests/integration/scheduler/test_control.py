"""The control calls: readiness, metadata, configuration, statistics, index."""

import asyncio
from pathlib import Path

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    Executor,
    World,
    add_model,
    numbers_of,
    world,
)


async def test_a_version_is_ready_when_all_instances_of_one_executor_are(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=CONFIG.replace("count: 1", "count: 2"))
    async with world(tmp_path / "m") as it:
        executor = await it.executor(lazy=True)
        loads = [(await executor.command()).load for _ in range(2)]
        first = executor.load(loads[0])
        gateway = await it.gateway()
        await gateway.arrived()
        assert not await it.model_ready()
        executor.load(loads[1])
        await it.until_state("READY")
        assert await it.model_ready()
        assert await it.server_ready()
        await first.die()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        assert await it.model_ready()


async def next_query(executor: Executor) -> pb.ReadinessQuery:
    assert executor.questions is not None
    async with asyncio.timeout(LIMIT_S):
        return await executor.questions.get()


@pytest.mark.parametrize("ready", [True, False])
async def test_concurrent_readiness_calls_share_one_query(mesh: World, ready: bool) -> None:
    executor = await mesh.executor(reports_readiness=True)
    await mesh.until_state("READY")
    calls = [asyncio.ensure_future(ask()) for ask in (mesh.model_ready, mesh.server_ready)]
    query = await next_query(executor)
    other = pb.ReadinessReport(
        question=query.question + 1, instance=query.instance, ready=not ready
    )
    executor.send(readiness_report=other)
    executor.send(readiness_report=pb.ReadinessReport(question=7, instance=7))
    # A later call waits for the same report.
    calls.append(asyncio.ensure_future(mesh.model_ready(version="1")))
    await mesh.index()
    report = pb.ReadinessReport(question=query.question, instance=query.instance, ready=ready)
    executor.send(readiness_report=report)
    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.gather(*calls) == [ready] * 3
    assert executor.questions is not None
    assert executor.questions.empty()
    # The next call sends another query.
    later = asyncio.ensure_future(mesh.model_ready())
    query = await next_query(executor)
    report = pb.ReadinessReport(question=query.question, instance=query.instance, ready=True)
    executor.send(readiness_report=report)
    assert await later


async def test_strict_readiness_needs_every_model_and_lenient_that_no_load_is_pending(
    repository: Path,
) -> None:
    add_model(repository, "broken", config='name: "other"')
    async with world(repository, strict_readiness=False) as it:
        assert not await it.server_ready()
        await it.executor()
        await it.until_state("READY")
        assert await it.server_ready()


@pytest.mark.parametrize(
    ("method", "fields", "status"),
    [
        ("ModelMetadata", {"name": "no"}, Status.NOT_FOUND),
        ("ModelStatistics", {"name": "no"}, Status.INVALID_ARGUMENT),
        ("ModelStatistics", {"name": "doubler", "version": "9"}, Status.INVALID_ARGUMENT),
        ("RepositoryIndex", {"repository_name": "x"}, Status.UNIMPLEMENTED),
    ],
)
async def test_how_control_calls_are_refused(
    mesh: World, method: str, fields: dict[str, str], status: Status
) -> None:
    await mesh.executor()
    await mesh.until_state("READY")
    with pytest.raises(RpcError) as refused:
        await mesh.control(method, **fields)
    assert refused.value.status == status


async def test_a_control_call_that_cannot_be_read_is_an_error(mesh: World) -> None:
    with pytest.raises(RpcError) as refused:
        await mesh.channel().unary("/nereid.v1.Scheduler/ModelReady", b"\xff", timeout_s=LIMIT_S)
    assert refused.value.status == Status.INTERNAL
    assert not await mesh.model_ready(version="9")
