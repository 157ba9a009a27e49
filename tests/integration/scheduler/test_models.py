"""The scheduler over real sockets: loading models on executors, and failures of both."""

import asyncio
from pathlib import Path

import pytest

from nereid.core.methods import EXECUTE_PATH, INSTANCE_KEY, JOIN_PATH
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, Status
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    Executor,
    Instance,
    World,
    add_model,
    description,
    error_status_of,
    numbers_of,
    request,
    world,
)


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
        config = await it.config()
        assert config.HasField("dynamic_batching")
        assert config.instance_group[0].count == 2
        metadata = await it.control("ModelMetadata", name="doubler", version="1")
        assert list(metadata.versions) == ["1"]
        assert list(metadata.inputs[0].shape) == [-1, 2]


async def test_an_event_of_a_newer_executor_is_ignored(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(repository) as it:
        executor = await it.executor(lazy=True)
        load = (await executor.command()).load
        # Field 99 of the message, an empty message.
        executor.stream.send(b"\x9a\x06\x00")
        executor.load(load)
        await it.until_state("READY")
        gateway = await it.gateway()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
    assert "sends unknown events; ignoring them" in caplog.text


async def test_a_model_that_cannot_be_described_leaves_the_rest_serving(repository: Path) -> None:
    add_model(repository, "broken", config=None)
    broken = pb.Described(error=pb.ErrorStatus(code=13, message="no protobuf"))
    async with world(repository) as it:
        await it.executor(described=broken)
        await it.until_state("READY")
        await it.until_state("UNAVAILABLE", "broken")
        assert (await it.index())["broken"] == ("UNAVAILABLE", "Internal: no protobuf")
        gateway = await it.gateway()
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
        error_status = error_status_of(await gateway.ask(model="broken"))
        assert (
            error_status.message == "Request for unknown model: 'broken' has no available versions"
        )
        exact = error_status_of(await gateway.ask(model="broken", version="1"))
        assert (exact.code, exact.message) == (
            Status.UNAVAILABLE,
            "Request for unknown model: 'broken' version 1 is not at ready state",
        )
        assert not await it.server_ready()


async def test_one_failed_instance_fails_the_load_and_the_others_are_unloaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_model(tmp_path / "m", config=CONFIG.replace("count: 1", "count: 2"))
    async with world(tmp_path / "m") as it:
        executor = await it.executor(lazy=True)
        loads = [(await executor.command()).load for _ in range(2)]
        instance = executor.load(loads[0])
        error_status = pb.ErrorStatus(code=13, message="no room")
        executor.send(
            instance_failed=pb.InstanceFailed(instance=loads[1].instance, error=error_status)
        )
        unload = (await executor.command()).unload
        assert unload.instance == loads[0].instance
        await asyncio.wait_for(instance.closed.wait(), LIMIT_S)
        await it.until_state("UNAVAILABLE")
    assert len([each for each in caplog.records if "no room" in each.getMessage()]) == 1


async def test_a_live_executor_is_not_evicted_by_its_name(
    mesh: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, gateway = await mesh.pair("same", hold=True, process="1")
    future = gateway.send(request(1, 2))
    instance, batch = await first.batch()
    for process in ("2", "2", ""):
        rogue = await mesh.executor("same", process=process)
        await asyncio.wait_for(rogue.closed.wait(), LIMIT_S)
        assert rogue.error is not None
        assert rogue.error.status is Status.ALREADY_EXISTS
        assert "--name" in rogue.error.message
        assert rogue.commands.empty()
    instance.response(batch)
    assert numbers_of(await asyncio.wait_for(future, LIMIT_S)) == [2, 4]
    assert len([line for line in caplog.messages if "refused" in line]) == 1
    # Its name is free once it has died, which its broken stream says at once.
    await first.die()
    heir = await mesh.executor("same", process="2")
    assert (await heir.command()).WhichOneof("command") == "load"


async def test_an_instance_is_not_taken_over_by_another_process(mesh: World) -> None:
    first = await mesh.executor("first", process="1")
    await mesh.until_state("READY")
    (instance,) = first.instances
    rogue = Executor(mesh, "rogue", process="2")
    stolen = Instance(rogue, instance.load)
    await asyncio.wait_for(stolen.closed.wait(), LIMIT_S)
    assert stolen.error is not None
    assert stolen.error.status is Status.NOT_FOUND
    gateway = await mesh.gateway()
    assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
    assert not rogue.seen


@pytest.mark.parametrize(
    "message", [b"\xff", pb.ExecutorEvent(leaving=pb.Leaving()).SerializeToString()]
)
async def test_a_join_stream_without_a_hello_is_refused(mesh: World, message: bytes) -> None:
    closed: asyncio.Future[RpcError | None] = asyncio.get_running_loop().create_future()
    stream = mesh.channel().stream(JOIN_PATH, on_message=lambda _: None, on_close=closed.set_result)
    stream.send(message)
    error = await asyncio.wait_for(closed, LIMIT_S)
    assert error is not None
    assert error.status == Status.INVALID_ARGUMENT


def anothers_events(instance: int) -> list[tuple[str, object]]:
    """What an executor might say of an instance, its loads, batches and requests."""
    error = pb.ErrorStatus(code=13, message="forged")
    numbers = range(64)
    return [
        ("instance_failed", pb.InstanceFailed(instance=instance, error=error)),
        ("instance_unloaded", pb.InstanceUnloaded(instance=instance)),
        *(
            ("instance_lost", pb.InstanceLost(instance=instance, stream=stream, error=error))
            for stream in (0, 1, 1 << 63)
        ),
        ("readiness_report", pb.ReadinessReport(instance=instance, question=1)),
        ("load_progress", pb.LoadProgress(instance=instance, text="forged")),
        *(("withdrawn", pb.Withdrawn(instance=instance, batch=batch)) for batch in numbers),
        *(("described", pb.Described(command=command, error=error)) for command in numbers),
        *(("recalled", pb.Recalled(request=request)) for request in numbers),
        *(("begun_requests", pb.BegunRequests(ids=numbers, query=query)) for query in numbers),
    ]


async def test_what_an_executor_says_of_anothers_instances_changes_nothing(
    mesh: World, caplog: pytest.LogCaptureFixture
) -> None:
    victim = await mesh.executor("victim", hold=True)
    await mesh.until_state("READY")
    gateway = await mesh.gateway()
    asked = asyncio.ensure_future(gateway.ask(1, 2))
    instance, batch = await victim.batch()
    # While a batch is at the victim; by an executor that could take it, and is loaded itself.
    rogue = await mesh.executor("rogue", refuse="has no room")
    events = anothers_events(instance.load.instance)
    for kind, event in (*events, *reversed(events), *events):
        rogue.send(**{kind: event})
    rogue.send(hello=pb.Hello(name="victim", backends=["onnxruntime"]))
    await asyncio.wait_for(rogue.closed.wait(), LIMIT_S)
    assert rogue.error is not None
    assert rogue.error.status is Status.INVALID_ARGUMENT
    assert not victim.closed.is_set()
    instance.response(batch)
    assert numbers_of(await asked) == [2, 4]
    await mesh.until_state("READY")
    # The log is not filled.
    assert caplog.text.count("a description for an unknown command") == 1


@pytest.mark.parametrize("number", ["12345", "x"])
async def test_an_unknown_instance_is_refused(mesh: World, number: str) -> None:
    closed: asyncio.Future[RpcError | None] = asyncio.get_running_loop().create_future()
    mesh.channel().stream(
        EXECUTE_PATH,
        metadata=((INSTANCE_KEY, number),),
        on_message=lambda _: None,
        on_close=closed.set_result,
    )
    error = await asyncio.wait_for(closed, LIMIT_S)
    assert error is not None
    assert error.status == Status.NOT_FOUND


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
