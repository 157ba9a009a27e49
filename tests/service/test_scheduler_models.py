"""The scheduler over real sockets: models' lives, the control plane, the process."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from nereid.messages import Answer, CachedModels
from nereid.paths import EXECUTE_PATH, INSTANCE_KEY, JOIN_PATH
from nereid.pb import kserve_pb2 as kserve
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import LocalChannel, RpcError, Status, memory_links
from tests.service.scheduler_world import (
    CONFIG,
    LIMIT_S,
    Executor,
    World,
    add_model,
    description,
    fault_of,
    numbers_of,
    request,
    world,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    add_model(path)
    return path


async def refused(it: World, method: str, message: object, reply: type) -> RpcError:
    with pytest.raises(RpcError) as error_info:
        await it.control(method, message, reply)
    return error_info.value


async def server_ready(it: World) -> bool:
    reply = await it.control("ServerReady", kserve.ServerReadyRequest(), kserve.ServerReadyResponse)
    assert isinstance(reply, kserve.ServerReadyResponse)
    return reply.ready


async def model_ready(it: World, version: str = "") -> bool:
    asked = kserve.ModelReadyRequest(name="doubler", version=version)
    reply = await it.control("ModelReady", asked, kserve.ModelReadyResponse)
    assert isinstance(reply, kserve.ModelReadyResponse)
    return reply.ready


async def test_a_model_without_a_configuration_is_described_and_completed(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=None)
    async with world(tmp_path / "m") as it:
        executor = await it.executor(described=description())
        await it.until_state("READY")
        describe = (await executor.command()).describe
        assert (describe.config.name, describe.config.backend) == ("doubler", "onnxruntime")
        assert describe.version_path == str(tmp_path / "m" / "doubler" / "1")
        loads = [(await executor.command()).load for _ in range(2)]
        assert {load.instance_name for load in loads} == {"doubler_0", "doubler_1"}
        assert loads[0].version == 1
        assert loads[0].config.max_batch_size == 4
        asked = kserve.ModelConfigRequest(name="doubler")
        reply = await it.control("ModelConfig", asked, kserve.ModelConfigResponse)
        assert isinstance(reply, kserve.ModelConfigResponse)
        assert reply.config.HasField("dynamic_batching")
        assert reply.config.instance_group[0].count == 2
        metadata = await it.control(
            "ModelMetadata",
            kserve.ModelMetadataRequest(name="doubler", version="1"),
            kserve.ModelMetadataResponse,
        )
        assert isinstance(metadata, kserve.ModelMetadataResponse)
        assert list(metadata.versions) == ["1"]
        assert list(metadata.inputs[0].shape) == [-1, 2]


async def test_a_model_that_cannot_be_described_leaves_the_rest_serving(repository: Path) -> None:
    add_model(repository, "broken", config=None)
    broken = pb.Described(error=pb.Fault(code=13, message="no protobuf"))
    async with world(repository) as it:
        await it.executor(described=broken)
        await it.until_state("READY")
        await it.until_state("UNAVAILABLE", "broken")
        assert (await it.index())["broken"] == ("UNAVAILABLE", "Internal: no protobuf")
        gateway = await it.gateway()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        fault = fault_of(await gateway.ask(model="broken"))
        assert fault.message == "Request for unknown model: 'broken' has no available versions"
        exact = fault_of(await gateway.ask(model="broken", version="1"))
        assert (exact.code, exact.message) == (
            Status.UNAVAILABLE,
            "Request for unknown model: 'broken' version 1 is not at ready state",
        )
        assert not await server_ready(it)


async def test_a_description_may_come_from_another_executor(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=None)
    async with world(tmp_path / "m") as it:
        first = await it.executor("first")
        assert (await first.command()).WhichOneof("command") == "describe"
        second = await it.executor("second", described=description())
        assert second.commands.empty()
        await first.die()
        assert (await second.command()).WhichOneof("command") == "describe"
        await it.until_state("READY")


async def test_a_configuration_that_does_not_fit_its_model_is_refused(repository: Path) -> None:
    add_model(repository, "odd", config="max_batch_size: 2")
    described = description()
    described.outputs[0].dims[0] = 7
    async with world(repository) as it:
        await it.executor(described=described)
        await it.until_state("UNAVAILABLE", "odd")
        assert "does not support batching" in (await it.index())["odd"][1]


async def test_configurations_that_are_wrong_in_themselves_say_so_at_once(
    repository: Path,
) -> None:
    add_model(repository, "misnamed", config='name: "other"')
    add_model(repository, "negative", config=CONFIG.replace("4", "-4"))
    (repository / "empty").mkdir()
    async with world(repository, disable_auto_complete_config=True) as it:
        index = await it.index()
        assert index["misnamed"][0] == index["negative"][0] == index["empty"][0] == "UNAVAILABLE"
        assert index["misnamed"][1].startswith("Invalid argument: unexpected directory name")
        assert "Could not determine backend" in index["empty"][1]
        assert index["doubler"] == ("LOADING", "")


async def test_an_executor_that_fails_to_load_is_not_the_last_word(repository: Path) -> None:
    async with world(repository) as it:
        await it.executor("bad", refuse="out of memory")
        await it.until_state("UNAVAILABLE")
        assert (await it.index())["doubler"][1] == "Internal: out of memory"
        await it.executor("other", backends=("python",))
        assert (await it.index())["doubler"][0] == "UNAVAILABLE"
        await it.executor("good")
        await it.until_state("READY")
        gateway = await it.gateway()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]


async def test_one_failed_instance_fails_the_load_and_the_others_are_unloaded(
    tmp_path: Path,
) -> None:
    add_model(tmp_path / "m", config=CONFIG.replace("count: 1", "count: 2"))
    async with world(tmp_path / "m") as it:
        executor = await it.executor(lazy=True)
        loads = [(await executor.command()).load for _ in range(2)]
        instance = executor.load(loads[0])
        fault = pb.Fault(code=13, message="no room")
        executor.send(instance_failed=pb.InstanceFailed(instance=loads[1].instance, error=fault))
        unload = (await executor.command()).unload
        assert unload.instance == loads[0].instance
        executor.send(instance_unloaded=pb.InstanceUnloaded(instance=unload.instance))
        await asyncio.wait_for(instance.closed.wait(), LIMIT_S)
        await it.until_state("UNAVAILABLE")


async def test_an_instance_that_fails_in_service_leaves_the_others(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=CONFIG.replace("count: 1", "count: 2"))
    async with world(tmp_path / "m") as it:
        executor = await it.executor()
        await it.until_state("READY")
        fault = pb.Fault(code=13, message="device lost")
        for instance in executor.instances:
            number = instance.load.instance
            executor.send(instance_failed=pb.InstanceFailed(instance=number, error=fault))
            await asyncio.wait_for(instance.closed.wait(), LIMIT_S)
            if instance is executor.instances[0]:
                assert (await it.index())["doubler"] == ("READY", "")
        await it.until_state("UNAVAILABLE")


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


async def questions_to(executor: Executor) -> pb.AskReady:
    assert executor.questions is not None
    async with asyncio.timeout(LIMIT_S):
        return await executor.questions.get()


@pytest.mark.parametrize("ready", [True, False])
async def test_models_that_have_something_to_say_are_asked_once_by_all(
    repository: Path, ready: bool
) -> None:
    async with world(repository) as it:
        executor = await it.executor(tells_ready=True)
        await it.until_state("READY")
        asking = [asyncio.ensure_future(ask(it)) for ask in (model_ready, server_ready)]
        asked = await questions_to(executor)
        other = pb.ToldReady(question=asked.question + 1, instance=asked.instance, ready=not ready)
        executor.send(told_ready=other)
        executor.send(told_ready=pb.ToldReady(question=7, instance=7))
        # Whoever comes later waits for the same answer.
        asking.append(asyncio.ensure_future(model_ready(it, "1")))
        await it.index()
        told = pb.ToldReady(question=asked.question, instance=asked.instance, ready=ready)
        executor.send(told_ready=told)
        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.gather(*asking) == [ready] * 3
        assert executor.questions is not None
        assert executor.questions.empty()
        # The next one asks anew.
        later = asyncio.ensure_future(model_ready(it))
        asked = await questions_to(executor)
        told = pb.ToldReady(question=asked.question, instance=asked.instance, ready=True)
        executor.send(told_ready=told)
        assert await later


async def test_lenient_readiness_asks_no_model(repository: Path) -> None:
    async with world(repository, strict_readiness=False) as it:
        executor = await it.executor(tells_ready=True)
        await it.until_state("READY")
        assert await server_ready(it)
        assert executor.questions is not None
        assert executor.questions.empty()


async def test_one_executor_that_says_yes_is_enough(repository: Path) -> None:
    async with world(repository) as it:
        gateway = await it.gateway()
        one = await it.executor("one", hold=True, tells_ready=True)
        gateway.send(request(1, 2))
        await one.batch()
        # Executing is no reason not to be asked.
        two = await it.executor("two", hold=True, tells_ready=True)
        gateway.send(request(3, 4))
        await two.batch()
        asking = asyncio.ensure_future(model_ready(it))
        await questions_to(one)
        asked = await questions_to(two)
        told = pb.ToldReady(question=asked.question, instance=asked.instance, ready=True)
        two.send(told_ready=told)
        async with asyncio.timeout(LIMIT_S):
            assert await asking


async def test_strict_readiness_wants_an_executor_and_the_lenient_only_a_verdict(
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
        async with asyncio.timeout(LIMIT_S):
            while not await server_ready(it):
                await asyncio.sleep(0)
        gateway = await it.gateway()
        versions = {i.load.instance: i.load.version for i in executor.instances}
        assert sorted(versions.values()) == [1, 3]
        for text in ("", "1", " 3", "1z"):
            assert numbers_of(await gateway.ask(1, 2, version=text)) == [2, 4]
        texts = {
            "7": "Request for unknown model: 'doubler' version 7 is not found",
            "x": "failed to get model version from specified version string 'x' (details: stol),"
            " version should be an integral value > 0",
            "-1": "invalid model version specified '-1' , version should be an integral value > 0",
        }
        for text, message in texts.items():
            assert fault_of(await gateway.ask(version=text)).message == message
        for text, told in (("", ["1", "3"]), ("1", ["1"]), ("3", ["3"])):
            request = kserve.ModelMetadataRequest(name="doubler", version=text)
            metadata = await it.control("ModelMetadata", request, kserve.ModelMetadataResponse)
            assert isinstance(metadata, kserve.ModelMetadataResponse)
            assert list(metadata.versions) == told
        statistics = await it.control(
            "ModelStatistics", kserve.ModelStatisticsRequest(), kserve.ModelStatisticsResponse
        )
        assert isinstance(statistics, kserve.ModelStatisticsResponse)
        counts = {each.version: each.inference_count for each in statistics.model_stats}
        assert counts == {"1": 2, "3": 2}


async def test_statistics_keep_the_invariants(repository: Path) -> None:
    async with world(repository) as it:
        await it.executor()
        gateway = await it.gateway()
        for _ in range(3):
            await gateway.ask(1, 2, 3, 4)
        await gateway.ask(-1, 2)
        asked = kserve.ModelStatisticsRequest(name="doubler", version="1")
        reply = await it.control("ModelStatistics", asked, kserve.ModelStatisticsResponse)
        assert isinstance(reply, kserve.ModelStatisticsResponse)
        (model,) = reply.model_stats
        stats = model.inference_stats
        assert (model.inference_count, model.execution_count) == (6, 4)
        assert (stats.success.count, stats.fail.count) == (3, 1)
        assert stats.queue.count == stats.compute_infer.count == 3
        assert stats.compute_infer.ns == 6000
        assert stats.success.ns >= stats.queue.ns + 3 * 6000


async def test_control_errors_have_tritons_texts(repository: Path) -> None:
    async with world(repository) as it:
        await it.executor()
        await it.until_state("READY")
        error = await refused(
            it,
            "ModelMetadata",
            kserve.ModelMetadataRequest(name="no"),
            kserve.ModelMetadataResponse,
        )
        assert (error.status, error.message) == (
            Status.NOT_FOUND,
            "Request for unknown model: 'no' is not found",
        )
        for name, version, text in (
            ("no", "", "requested model 'no' is not available"),
            ("doubler", "9", "requested model version is not available for model 'doubler'"),
        ):
            asked = kserve.ModelStatisticsRequest(name=name, version=version)
            error = await refused(it, "ModelStatistics", asked, kserve.ModelStatisticsResponse)
            assert (error.status, error.message) == (Status.INVALID_ARGUMENT, text)
        error = await refused(
            it,
            "RepositoryIndex",
            kserve.RepositoryIndexRequest(repository_name="x"),
            kserve.RepositoryIndexResponse,
        )
        assert error.status == Status.UNIMPLEMENTED
        with pytest.raises(RpcError) as error_info:
            await it.channel().unary("/nereid.v1.Scheduler/ModelReady", b"\xff", timeout_s=LIMIT_S)
        assert error_info.value.status == Status.INTERNAL
        assert not await model_ready(it, "9")


async def test_the_index_of_ready_models(repository: Path) -> None:
    add_model(repository, "misnamed", config='name: "other"')
    async with world(repository) as it:
        await it.executor()
        await it.until_state("READY")
        asked = kserve.RepositoryIndexRequest(ready=True)
        reply = await it.control("RepositoryIndex", asked, kserve.RepositoryIndexResponse)
        assert isinstance(reply, kserve.RepositoryIndexResponse)
        assert [(entry.name, entry.version) for entry in reply.models] == [("doubler", "1")]


async def test_an_executor_that_joins_again_replaces_itself(repository: Path) -> None:
    async with world(repository) as it:
        first = await it.executor("same", hold=True)
        gateway = await it.gateway()
        future = gateway.send(request(1, 2))
        await first.batch()
        await it.executor("same")
        assert numbers_of(await asyncio.wait_for(future, LIMIT_S)) == [2, 4]


@pytest.mark.parametrize(
    "message", [b"\xff", pb.ExecutorEvent(leaving=pb.Leaving()).SerializeToString()]
)
async def test_a_stranger_is_no_executor(repository: Path, message: bytes) -> None:
    async with world(repository) as it:
        closed: asyncio.Future[RpcError | None] = asyncio.get_running_loop().create_future()
        stream = it.channel().stream(
            JOIN_PATH, on_message=lambda _: None, on_close=closed.set_result
        )
        stream.send(message)
        error = await asyncio.wait_for(closed, LIMIT_S)
        assert error is not None
        assert error.status == Status.INVALID_ARGUMENT


@pytest.mark.parametrize("number", ["12345", "x"])
async def test_an_unknown_instance_is_turned_away(repository: Path, number: str) -> None:
    async with world(repository) as it:
        closed: asyncio.Future[RpcError | None] = asyncio.get_running_loop().create_future()
        it.channel().stream(
            EXECUTE_PATH,
            metadata=((INSTANCE_KEY, number),),
            on_message=lambda _: None,
            on_close=closed.set_result,
        )
        error = await asyncio.wait_for(closed, LIMIT_S)
        assert error is not None
        assert error.status == Status.NOT_FOUND


async def test_a_gateway_in_the_same_process(repository: Path) -> None:
    async with world(repository) as it:
        await it.executor()
        await it.until_state("READY")
        mine, theirs = memory_links()
        it.service.attach(theirs)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def take(items: list[Answer | CachedModels]) -> None:
            for item in items:
                if isinstance(item, Answer):
                    answered.set_result(item)

        mine.on_items = take
        asked = request(4, 5)
        asked.id = 7
        mine.send(asked)
        answer = await asyncio.wait_for(answered, LIMIT_S)
        assert (answer.id, numbers_of(answer)) == (7, [8, 10])
        channel = LocalChannel(it.service.handlers())
        message = kserve.ServerReadyRequest().SerializeToString()
        reply = await channel.unary("/nereid.v1.Scheduler/ServerReady", message)
        assert kserve.ServerReadyResponse.FromString(reply).ready
        await channel.close()


async def start(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.scheduler", *flags, stderr=asyncio.subprocess.PIPE
    )


@pytest.mark.slow
async def test_the_process_starts_and_ends_on_sigterm(repository: Path) -> None:
    address = f"unix:{repository.parent / 's.sock'}"
    process = await start(f"--model-repository={repository}", f"--scheduler-address={address}")
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        while b"listening" not in (line := await process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGTERM)
        await process.stderr.read()
        assert await process.wait() == 0


@pytest.mark.slow
async def test_the_process_refuses_what_cannot_be(tmp_path: Path) -> None:
    process = await start(f"--model-repository={tmp_path}", "--scheduler-address=unix:/no/such/dir")
    _, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 2
    assert "--scheduler-address" in errors.decode().splitlines()[-1]
