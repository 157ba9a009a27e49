"""The control calls: readiness, metadata, configuration, statistics, index."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nereid.pb import kserve_pb2 as kserve
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    Executor,
    World,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)
from tests.support.waiting import until


async def refused(it: World, method: str, message: object, reply: type) -> RpcError:
    with pytest.raises(RpcError) as error_info:
        await it.control(method, message, reply)
    return error_info.value


async def server_ready(it: World) -> bool:
    reply = await it.control("ServerReady", kserve.ServerReadyRequest(), kserve.ServerReadyResponse)
    assert isinstance(reply, kserve.ServerReadyResponse)
    return reply.ready


async def model_ready(it: World, version: str = "") -> bool:
    message = kserve.ModelReadyRequest(name="doubler", version=version)
    reply = await it.control("ModelReady", message, kserve.ModelReadyResponse)
    assert isinstance(reply, kserve.ModelReadyResponse)
    return reply.ready


async def test_a_version_is_ready_when_all_instances_of_one_executor_are(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=CONFIG.replace("count: 1", "count: 2"))
    async with world(tmp_path / "m") as it:
        executor = await it.executor(lazy=True)
        loads = [(await executor.command()).load for _ in range(2)]
        first = executor.load(loads[0])
        gateway = await it.gateway()
        await gateway.arrived()
        assert not await model_ready(it)
        executor.load(loads[1])
        await it.until_state("READY")
        assert await model_ready(it)
        assert await server_ready(it)
        await first.die()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        assert await model_ready(it)


async def next_query(executor: Executor) -> pb.ReadinessQuery:
    assert executor.questions is not None
    async with asyncio.timeout(LIMIT_S):
        return await executor.questions.get()


@pytest.mark.parametrize("ready", [True, False])
async def test_concurrent_readiness_calls_share_one_query(repository: Path, ready: bool) -> None:
    async with world(repository) as it:
        executor = await it.executor(reports_readiness=True)
        await it.until_state("READY")
        calls = [asyncio.ensure_future(ask(it)) for ask in (model_ready, server_ready)]
        query = await next_query(executor)
        other = pb.ReadinessReport(
            question=query.question + 1, instance=query.instance, ready=not ready
        )
        executor.send(readiness_report=other)
        executor.send(readiness_report=pb.ReadinessReport(question=7, instance=7))
        # A later call waits for the same report.
        calls.append(asyncio.ensure_future(model_ready(it, "1")))
        await it.index()
        report = pb.ReadinessReport(question=query.question, instance=query.instance, ready=ready)
        executor.send(readiness_report=report)
        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.gather(*calls) == [ready] * 3
        assert executor.questions is not None
        assert executor.questions.empty()
        # The next call sends another query.
        later = asyncio.ensure_future(model_ready(it))
        query = await next_query(executor)
        report = pb.ReadinessReport(question=query.question, instance=query.instance, ready=True)
        executor.send(readiness_report=report)
        assert await later


async def test_lenient_readiness_queries_no_model(repository: Path) -> None:
    async with world(repository, strict_readiness=False) as it:
        executor = await it.executor(reports_readiness=True)
        await it.until_state("READY")
        assert await server_ready(it)
        assert executor.questions is not None
        assert executor.questions.empty()


async def test_one_ready_executor_is_enough(repository: Path) -> None:
    async with world(repository) as it:
        gateway = await it.gateway()
        one = await it.executor("one", hold=True, reports_readiness=True)
        gateway.send(request(1, 2))
        await one.batch()
        # Instances that execute are queried as well.
        two = await it.executor("two", hold=True, reports_readiness=True)
        gateway.send(request(3, 4))
        await two.batch()
        call = asyncio.ensure_future(model_ready(it))
        await next_query(one)
        query = await next_query(two)
        report = pb.ReadinessReport(question=query.question, instance=query.instance, ready=True)
        two.send(readiness_report=report)
        async with asyncio.timeout(LIMIT_S):
            assert await call


async def test_strict_readiness_needs_every_model_and_lenient_that_no_load_is_pending(
    repository: Path,
) -> None:
    add_model(repository, "broken", config='name: "other"')
    async with world(repository, strict_readiness=False) as it:
        assert not await server_ready(it)
        await it.executor()
        await it.until_state("READY")
        assert await server_ready(it)


async def test_versions_are_found_as_on_triton(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=CONFIG + "version_policy { all { } }", versions="1 3")
    async with world(tmp_path / "m") as it:
        executor = await it.executor()
        await it.until_state("READY")
        await until(lambda: server_ready(it))
        gateway = await it.gateway()
        versions = {i.load.instance: i.load.version for i in executor.instances}
        assert sorted(versions.values()) == [1, 3]
        for text in ("", "1", " 3", "1z"):
            assert numbers_of(await gateway.ask(1, 2, version=text)) == [2, 4]
        for text, status in (
            ("7", Status.NOT_FOUND),
            ("x", Status.INVALID_ARGUMENT),
            ("-1", Status.INVALID_ARGUMENT),
        ):
            assert error_status_of(await gateway.ask(version=text)).code == status
        for text, expected in (("", ["1", "3"]), ("1", ["1"]), ("3", ["3"])):
            request = kserve.ModelMetadataRequest(name="doubler", version=text)
            metadata = await it.control("ModelMetadata", request, kserve.ModelMetadataResponse)
            assert isinstance(metadata, kserve.ModelMetadataResponse)
            assert list(metadata.versions) == expected
        statistics = await it.control(
            "ModelStatistics", kserve.ModelStatisticsRequest(), kserve.ModelStatisticsResponse
        )
        assert isinstance(statistics, kserve.ModelStatisticsResponse)
        counts = {each.version: each.inference_count for each in statistics.model_stats}
        assert counts == {"1": 2, "3": 2}


async def test_how_control_calls_are_refused(repository: Path) -> None:
    async with world(repository) as it:
        await it.executor()
        await it.until_state("READY")
        for method, message, reply, status in (
            (
                "ModelMetadata",
                kserve.ModelMetadataRequest(name="no"),
                kserve.ModelMetadataResponse,
                Status.NOT_FOUND,
            ),
            *(
                (
                    "ModelStatistics",
                    kserve.ModelStatisticsRequest(name=name, version=version),
                    kserve.ModelStatisticsResponse,
                    Status.INVALID_ARGUMENT,
                )
                for name, version in (("no", ""), ("doubler", "9"))
            ),
            (
                "RepositoryIndex",
                kserve.RepositoryIndexRequest(repository_name="x"),
                kserve.RepositoryIndexResponse,
                Status.UNIMPLEMENTED,
            ),
        ):
            assert (await refused(it, method, message, reply)).status == status
        with pytest.raises(RpcError) as error_info:
            await it.channel().unary("/nereid.v1.Scheduler/ModelReady", b"\xff", timeout_s=LIMIT_S)
        assert error_info.value.status == Status.INTERNAL
        assert not await model_ready(it, "9")
