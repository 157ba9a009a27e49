"""The executor's service against a scheduler of real sockets, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from google.protobuf import text_format

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid_executor.backends.registry import BackendRegistry
from nereid_executor.service import ExecutorService
from nereid_executor.settings import ExecutorSettings, PathMapping
from tests.support.executor import gated_backend
from tests.support.executor.executor_site import IDENTITY, World, running
from tests.support.executor.executor_world import WAIT_S, InstanceStream, Scheduler, request
from tests.support.models.onnx_models import (
    config,
    head,
    identity,
    identity_config,
    member,
    response_of,
)
from tests.support.waiting import until

BAD_WARM_UP = (
    "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 2 }"
    " output { name: 'y' data_type: TYPE_FP32 dims: 2 }"
    " model_warmup { name: 'w' batch_size: 1 inputs { key: 'x' value "
    "{ data_type: TYPE_INT32 dims: 2 zero_data: true } } }"
)


class Gate:
    """Blocks a model's execution until it is released."""

    async def busy(self, world: World, number: int) -> InstanceStream:
        """An instance that is executing a batch."""
        gated = identity_config("FP32", "2")
        gated.backend = "gated"
        world.session.load(number, gated, "/nowhere")
        stream = await world.scheduler.accept_stream()
        stream.send(request(1), number=1)
        assert await asyncio.to_thread(gated_backend.started.wait, WAIT_S)
        return stream

    def release(self) -> None:
        gated_backend.released.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gated_backend.reset()
    gate = Gate()
    yield gate
    gate.release()


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Parametrised: with these settings of the executor."""
    async with running(tmp_path, **getattr(request, "param", {})) as world:
        yield world


async def test_hello_lists_devices_and_backends(world: World) -> None:
    assert world.hello.name == "one"
    assert world.hello.host
    assert [device.kind for device in world.hello.devices] == [pb.Device.CPU]
    assert set(world.hello.backends) >= {"identity", "onnxruntime", "python"}


async def test_a_model_is_described(world: World) -> None:
    described = await world.session.describe(config(""), world.identity())
    assert not described.HasField("error")
    (given,) = described.inputs
    assert (given.name, given.data_type, list(given.dims)) == ("x", 11, [-1, 2])
    assert [one.name for one in described.outputs] == ["y"]


async def test_a_command_of_a_newer_release_is_ignored(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # Field 99 of the message, an empty message.
    world.session.call.send(b"\x9a\x06\x00")
    await world.session.describe(config(""), world.identity())
    assert "unknown command from the scheduler; is it of a newer release?" in caplog.text


async def test_a_model_that_cannot_be_described_is_an_error(world: World) -> None:
    described = await world.session.describe(config(""), str(world.models))
    assert described.error.code == 5
    assert "unable to find" in described.error.message
    other = config("")
    other.backend = "b"
    described = await world.session.describe(other, world.identity())
    assert described.error.message.startswith("unable to find backend library for backend 'b'")


async def test_an_unknown_failure_is_logged_and_not_sent(
    world: World, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gated = config("")
    gated.backend = "gated"
    described = await world.session.describe(gated, "/nowhere")
    assert (described.error.code, described.error.message) == (13, INTERNAL_MESSAGE)
    assert "secret of /nowhere" in caplog.text


def never_completing(root: Path) -> tuple[model_config_pb2.ModelConfig, str]:
    """A Python model whose auto_complete_config leaves its process id in a file, and never ends."""
    version = root / "never" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(
        "import os, signal\n"
        "from pathlib import Path\n\n\n"
        "class TritonPythonModel:\n"
        "    @staticmethod\n"
        "    def auto_complete_config(config):\n"
        f"        Path({str(root / 'began')!r}).write_text(str(os.getpid()))\n"
        "        signal.pause()\n"
    )
    return model_config_pb2.ModelConfig(name="never", backend="python"), str(version)


@pytest.mark.parametrize("world", [{"model_describe_timeout_secs": 20.0}], indirect=True)
async def test_a_model_that_never_completes_its_configuration_holds_up_nobody(
    world: World,
) -> None:
    written, path = never_completing(world.models)
    world.session.begin_describe(9, written, path)
    await until((world.models / "began").exists)
    described = await world.session.describe(config(""), world.identity())
    assert not described.HasField("error")


@pytest.mark.parametrize("world", [{"model_describe_timeout_secs": 0.5}], indirect=True)
async def test_what_completes_no_configuration_in_time_is_killed(world: World) -> None:
    written, path = never_completing(world.models)
    world.session.begin_describe(9, written, path)
    error = (await world.session.event()).described.error
    assert error.code == 14
    assert "'never' was not described within 0.5 s: its own code takes too long" in error.message
    began = world.models / "began"
    # It is killed with its thread, or by it.
    await until(lambda: not (began.exists() and Path(f"/proc/{began.read_text()}").exists()))


@pytest.mark.parametrize("method", ["initialize(self, args)", "execute(self, requests)"])
async def test_an_instance_that_never_gets_ready_ends_when_it_is_unloaded(
    world: World, method: str
) -> None:
    began = world.models / "began"
    version = world.models / "never" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(
        "import os, signal\n"
        "from pathlib import Path\n\n\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return []\n\n"
        f"    def {method}:\n"
        f"        Path({str(began)!r}).write_text(str(os.getpid()))\n"
        "        signal.pause()\n"
    )
    warmed = text_format.Parse(
        "name: 'never' backend: 'python' input { name: 'x' data_type: TYPE_FP32 dims: 1 }"
        " output { name: 'y' data_type: TYPE_FP32 dims: 1 }"
        " model_warmup { name: 'w' batch_size: 1 inputs { key: 'x' value"
        " { data_type: TYPE_FP32 dims: 1 zero_data: true } } }",
        model_config_pb2.ModelConfig(),
    )
    world.session.load(7, warmed, str(version))
    await until(lambda: began.exists() and began.read_text())
    process = Path(f"/proc/{began.read_text()}")
    world.session.unload(7)
    assert (await world.session.event()).instance_unloaded.instance == 7
    await until(lambda: not process.exists())


@pytest.mark.parametrize("world", [{"cpu_cores": 6}], indirect=True)
async def test_a_models_instances_share_the_cores(world: World, gate: Gate) -> None:
    gated = identity_config("FP32", "2")
    gated.backend = "gated"
    gated.instance_group.add(count=3)
    world.session.load(7, gated, "/nowhere")
    await world.scheduler.accept_stream()
    assert gated_backend.specs[-1].threads == 2


async def test_an_instance_serves_batches_until_it_is_unloaded(world: World) -> None:
    stream = await world.instance(7)
    assert stream.number == 7
    for number in range(3):
        executed = await stream.execute(request(number), request(number + 0.5, rows=2))
        assert [response_of(one)[0][2:] for one in executed.responses] == [
            ([1, 2], np.full(2, number, np.float32).tobytes()),
            ([2, 2], np.full(4, number + 0.5, np.float32).tobytes()),
        ]
    world.session.unload(7)
    await stream.wait()
    assert (await world.session.event()).instance_unloaded.instance == 7


async def test_a_running_batch_is_completed_before_the_unload(world: World, gate: Gate) -> None:
    stream = await gate.busy(world, 7)
    world.session.unload(7)
    # Commands are handled in order, so by now it has handled the first unload.
    world.session.unload(99)
    assert (await world.session.event()).instance_unloaded.instance == 99
    assert not stream.ended.is_set()
    gate.release()
    assert response_of((await stream.responses()).responses[0])[0][2] == [1, 2]
    await stream.wait()
    assert (await world.session.event()).instance_unloaded.instance == 7
    assert gated_backend.closed.is_set()


async def test_a_waiting_batch_is_executed_next_unless_it_is_withdrawn(
    world: World, gate: Gate
) -> None:
    stream = await gate.busy(world, 7)
    assert stream.call.get("nereid-withdrawals") == "1"
    stream.send(request(2), number=2)
    stream.send(request(3), number=3)
    # Neither what executes nor what is unknown is given back.
    for number, batch in ((7, 1), (8, 1), (7, 2)):
        world.session.withdraw(number, batch)
    withdrawn = (await world.session.event()).withdrawn
    assert (withdrawn.instance, withdrawn.batch) == (7, 2)
    gate.release()
    assert [(await stream.responses()).id for _ in range(2)] == [1, 3]
    world.session.withdraw(7, 3)
    world.session.unload(7)
    assert (await world.session.event()).instance_unloaded.instance == 7
    assert stream.executed.empty()


async def test_an_instance_reconnects_when_its_stream_breaks_during_a_batch(
    world: World, gate: Gate
) -> None:
    stream = await gate.busy(world, 7)
    stream.call.fail(Status.UNAVAILABLE, "restarting")
    gate.release()
    again = await world.scheduler.accept_stream()
    assert len((await again.execute(request(1))).responses) == 1


@pytest.mark.parametrize(
    ("text", "kind", "code", "reason"),
    [
        ("max_batch_size: 8", 0, 3, "configuration expects 0 inputs, model provides 1"),
        (
            BAD_WARM_UP,
            0,
            3,
            "failed to run warmup sample 'w': unexpected input 'x'",
        ),
        ("", 1, 14, "has no CUDA"),
    ],
)
async def test_an_instance_that_cannot_be_loaded_fails_with_the_reason(
    world: World, text: str, kind: int, code: int, reason: str
) -> None:
    world.session.load(7, config(text), world.identity(), kind)
    failed = await world.session.failure()
    assert (failed.instance, failed.error.code) == (7, code)
    assert reason in failed.error.message
    assert world.scheduler.streams_waiting == 0


async def test_a_malformed_batch_ends_the_stream(world: World) -> None:
    stream = await world.instance(7)
    stream.call.send(b"\xff")
    await stream.wait()
    again = await world.scheduler.accept_stream()
    assert len((await again.execute(request(1))).responses) == 1


async def test_a_refusal_ends_the_instance(world: World) -> None:
    world.scheduler.refused.add("7")
    world.session.load(7, IDENTITY, world.identity())
    failed = await world.session.failure()
    assert failed.error.message == "the scheduler refused the instance: never heard of it"


async def test_an_instance_does_not_reconnect_after_a_regular_end(world: World) -> None:
    stream = await world.instance(7)
    stream.call.finish()
    world.session.unload(7)
    assert (await world.session.event()).instance_unloaded.instance == 7
    assert world.scheduler.streams_waiting == 0


async def test_malformed_commands_change_nothing(world: World) -> None:
    stream = await world.instance(7)
    world.session.call.send(b"\xff")
    world.session.call.send(b"")
    world.session.load(7, IDENTITY, world.identity())
    world.session.unload(99)
    assert (await world.session.event()).instance_unloaded.instance == 99
    assert len((await stream.execute(request(1))).responses) == 1


async def test_after_the_schedulers_restart_a_new_session_begins(tmp_path: Path) -> None:
    scheduler = Scheduler()
    path = str(identity(tmp_path / "1", "FP32", ["n", 2]))
    service = ExecutorService(
        ExecutorSettings(scheduler_address=f"unix:{tmp_path}/socket", name="one", gpus="none"),
        BackendRegistry(),
    )
    # It may start before the scheduler.
    task = asyncio.create_task(service.run())
    async with scheduler.serving(tmp_path / "socket"):
        session, _ = await scheduler.accept_session()
        session.load(7, IDENTITY, path)
        await scheduler.accept_stream()
    async with scheduler.serving(tmp_path / "socket"):
        session, hello = await scheduler.accept_session()
        assert hello.name == "one"
        session.load(8, IDENTITY, path)
        stream = await scheduler.accept_stream()
        assert stream.number == 8
        assert len((await stream.execute(request(1))).responses) == 1
        service.leave()
        assert await asyncio.wait_for(task, WAIT_S)


async def test_leaving_is_sent_and_the_running_batch_completed(world: World, gate: Gate) -> None:
    stream = await gate.busy(world, 7)
    leaving = asyncio.create_task(world.leave())
    assert (await world.session.event()).HasField("leaving")
    gate.release()
    assert response_of((await stream.responses()).responses[0])[0][2] == [1, 2]
    await stream.wait()
    assert (await world.session.event()).instance_unloaded.instance == 7
    await world.session.wait()
    assert await leaving


async def test_batches_on_their_way_to_a_leaving_executor_are_completed(world: World) -> None:
    stream = await world.instance(7)
    leaving = asyncio.create_task(world.leave())
    assert (await world.session.event()).HasField("leaving")
    assert len((await stream.execute(request(1))).responses) == 1
    await stream.wait()
    assert await leaving


async def test_leaving_does_not_wait_for_ever(tmp_path: Path, gate: Gate) -> None:
    async with running(tmp_path, exit_timeout_secs=0.01) as world:
        await gate.busy(world, 7)
        assert not await world.leave()
    # The instance ends after its event loop.
    gate.release()
    assert await asyncio.to_thread(gated_backend.closed.wait, WAIT_S)


async def test_a_response_that_a_lost_scheduler_never_reads_blocks_nothing(world: World) -> None:
    path = identity(world.models / "any" / "1", "FP32", ["n", "m"])
    world.session.load(7, identity_config("FP32", "-1"), str(path))
    stream = await world.scheduler.accept_stream()
    # The response is larger than the window, which will not grow.
    stream.call.pause()
    values = np.zeros(1 << 20, np.float32)
    stream.send(member(head(("x", "FP32", [1, 1 << 20])), values.tobytes()))
    await until(lambda: not stream.call.buffered_bytes)
    world.session.call.fail(Status.UNAVAILABLE, "restarting")
    session, _ = await world.scheduler.accept_session()
    session.load(7, identity_config("FP32", "-1"), str(path))
    # The instance is adopted: it does not try to write to the old stream any more.
    assert len((await (await world.scheduler.accept_stream()).execute(request(1))).responses) == 1


@pytest.mark.parametrize("world", [{"kept_instance_secs": 0.0}], indirect=True)
async def test_instances_of_a_lost_scheduler_finish_and_are_freed(world: World, gate: Gate) -> None:
    await gate.busy(world, 7)
    world.session.call.fail(Status.UNAVAILABLE, "restarting")
    gate.release()
    assert await asyncio.to_thread(gated_backend.closed.wait, WAIT_S)
    session, hello = await world.scheduler.accept_session()
    assert hello.name == "one"
    session.unload(7)
    assert (await session.event()).instance_unloaded.instance == 7


async def test_leaving_without_a_scheduler(tmp_path: Path) -> None:
    service = ExecutorService(
        ExecutorSettings(scheduler_address=f"unix:{tmp_path}/no"), BackendRegistry()
    )
    task = asyncio.create_task(service.run())
    await asyncio.sleep(0)
    service.leave()
    assert await asyncio.wait_for(task, WAIT_S)


async def test_models_may_lie_elsewhere_than_for_the_scheduler(tmp_path: Path) -> None:
    mapping = PathMapping(PurePosixPath("/theirs"), PurePosixPath(tmp_path))
    async with running(tmp_path, model_repository_map=(mapping,)) as world:
        world.identity()
        described = await world.session.describe(config(""), "/theirs/identity/1")
        assert [one.name for one in described.inputs] == ["x"]
        world.session.load(7, IDENTITY, "/theirs/identity/1")
        assert (
            len((await (await world.scheduler.accept_stream()).execute(request(1))).responses) == 1
        )


async def test_it_is_ready_once_it_has_loaded_what_it_was_asked_to(
    world: World, gate: Gate
) -> None:
    await world.instance(number=6)
    assert world.service.ready
    slow = identity_config("FP32", "2")
    slow.backend = "gated"
    slow.parameters["slow_load"].string_value = "true"
    world.session.load(7, slow, "/nowhere")
    assert await asyncio.to_thread(gated_backend.started.wait, WAIT_S)
    assert not world.service.ready
    gate.release()
    await world.scheduler.accept_stream()
    assert world.service.ready
    world.session.load(8, IDENTITY, "/nowhere")
    await world.session.failure()
    # That it cannot be loaded is the scheduler's to report.
    assert world.service.ready
    assert await world.leave()
    assert not world.service.ready
