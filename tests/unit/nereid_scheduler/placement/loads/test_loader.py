"""The loader with fake executors: failures, reconnections and updates."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse
from nereid.model_config import ModelConfig, freeze_config
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.models.lifecycle import VersionState
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.versions.caching.cache_client import CacheClient
from tests.support.scheduler.cache_site import SECRETS, FakeLink
from tests.support.scheduler.world import CommandStream as Stream
from tests.support.scheduler.world import LoaderWorld, joined, turn

WRITTEN = """
backend: "onnxruntime"
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
instance_group { count: 2 kind: KIND_CPU }
"""


class World(LoaderWorld):
    """A loader that loads version 1 of m."""

    def __init__(
        self, config: str = WRITTEN, *, has_gpu: bool = False, path: str = "/m/1", **rules: Any
    ) -> None:
        super().__init__(**({"settings": lambda _: {"key": "value"}} | rules), completes=True)
        self.has_gpu = has_gpu
        self.served = self.load("m", config, path=path)

    @property
    def state(self) -> VersionState:
        return self.served.life.state

    def join(self, *names: str, **fields: Any) -> tuple[Session, Any]:
        return super().join(*names, gpu=self.has_gpu, **fields)


def described(command: int) -> pb.Described:
    message = pb.Described(command=command)
    for where, name in ((message.inputs, "I"), (message.outputs, "O")):
        where.add(name=name, data_type=model_config_pb2.TYPE_UINT8, dims=[-1, 1])
    return message


async def test_a_load_command_is_complete() -> None:
    it = World()
    _, stream = it.join()
    first, second = (command.load for command in stream.sent)
    assert (first.instance_name, second.instance_name) == ("m_0_0", "m_0_1")
    assert first.instance != second.instance
    assert (first.version, first.version_path) == (1, "/m/1")
    assert first.kind == pb.Device.CPU
    assert dict(first.backend_settings) == {"key": "value"}
    assert it.state is VersionState.LOADING
    it.open(stream)
    assert it.served.life.serving
    assert it.changes > 0


async def test_clients_see_the_instance_groups_of_the_first_executor() -> None:
    it = World(WRITTEN.replace("kind: KIND_CPU", "kind: KIND_AUTO"), has_gpu=True)
    assert it.served.shown is None
    it.join("first")
    it.has_gpu = False
    it.join("second")
    shown: model_config_pb2.ModelConfig | None = it.served.shown
    assert shown is not None
    (group,) = shown.instance_group
    assert (group.count, list(group.gpus)) == (2, [0])
    assert group.kind == group.KIND_GPU


@pytest.mark.parametrize(
    ("written", "python_based", "shown"),
    [
        ("", ["onnxruntime"], "model.py"),
        ("", ["other"], ""),
        ('runtime: "libtriton_onnxruntime.so"', ["onnxruntime"], "libtriton_onnxruntime.so"),
    ],
)
async def test_clients_see_the_runtime_of_python_based_backends(
    written: str, python_based: list[str], shown: str
) -> None:
    it = World(WRITTEN + written)
    it.join(python_based=python_based)
    assert it.served.shown is not None
    assert it.served.shown.runtime == shown


async def test_an_instance_that_reconnects_replaces_its_old_stream() -> None:
    it = World()
    _, stream = it.join()
    (old, _) = it.open(stream)
    placed = it.loader.streams.instance_opened(stream.sent[0].load.instance, new := Stream())
    assert placed is not None
    assert old.finished
    it.loader.streams.instance_closed(placed, old)
    assert placed.instance.stream is new
    assert it.served.life.serving


async def test_a_version_serves_again_with_the_first_instance_that_reconnects() -> None:
    it = World()
    _, stream = it.join()
    streams = it.open(stream)
    for command, each in zip(stream.sent, streams, strict=True):
        placed = it.loader.streams.instance_opened(command.load.instance, again := Stream())
        assert placed is not None
        assert each.finished
        it.loader.streams.instance_closed(placed, again)
    assert (it.state, it.served.life.up) == (VersionState.READY, False)
    it.loader.streams.instance_opened(stream.sent[0].load.instance, Stream())
    assert it.served.life.serving


async def test_reports_about_another_executors_instances_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = World()
    _, stream = it.join()
    stranger = joined("stranger")[0]
    it.loader.streams.instance_failed(stranger, stream.sent[0].load.instance, ErrorStatus(13, "x"))
    it.loader.streams.instance_failed(stranger, 99, ErrorStatus(13, "x"))
    it.loader.loads.model_described(stranger, described(99))
    assert it.state is VersionState.LOADING
    assert "sent a description for an unknown command" in caplog.text


async def test_a_description_by_another_executor_is_ignored() -> None:
    it = World('backend: "onnxruntime"')
    session, stream = it.join()
    command = stream.sent[0].describe.command
    stranger = joined("stranger")[0]
    it.loader.loads.model_described(stranger, described(command))
    assert it.served.runtime is None
    it.loader.loads.model_described(session, described(command))
    assert it.served.runtime is not None


async def test_progress_of_a_load_is_the_reason_of_its_state() -> None:
    it = World('backend: "onnxruntime"')
    session, stream = it.join()

    def report(text: str, by: Session = session, **which: int) -> str:
        it.loader.loads.load_progressed(by, pb.LoadProgress(text=text, **which))
        return it.served.life.reason

    command = stream.sent[0].describe.command
    assert report("installing\n" + "x" * 300, command=command) == "installing\\n" + "x" * 189
    assert report("other", joined("stranger")[0], command=command) != "other"
    assert report("other", command=command + 1) != "other"
    it.loader.loads.model_described(session, described(command))
    assert (it.state, it.served.life.reason) == (VersionState.LOADING, "")
    instance = stream.sent[1].load.instance
    assert report("installing", instance=instance) == "installing"
    assert report("", instance=instance) == ""
    it.open(stream)
    assert report("installing", instance=instance) == ""
    assert it.state is VersionState.READY


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_description_of_a_version_that_was_given_away_is_no_breach(
    caplog: pytest.LogCaptureFixture, leaves: bool
) -> None:
    it = World('backend: "onnxruntime"')
    session, stream = it.join()
    it.loader.unload_now(it.served)
    if leaves:
        it.loader.executor_left(session)
    else:
        it.loader.loads.model_described(session, described(stream.sent[0].describe.command))
    assert it.served.life.unloaded
    assert "unknown command" not in caplog.text


async def test_while_one_executor_describes_the_others_wait() -> None:
    it = World('backend: "onnxruntime"')
    first, stream = it.join("first")
    _, other = it.join("second")
    assert other.sent == []
    it.loader.loads.model_described(first, described(stream.sent[0].describe.command))
    assert [command.WhichOneof("command") for command in other.sent] == ["load", "load"]


async def test_a_bug_in_completion_refuses_the_model_only(caplog: pytest.LogCaptureFixture) -> None:
    def explode(_backend: str) -> dict[str, str]:
        raise RuntimeError("bug")

    it = World(settings=explode)
    assert it.state is VersionState.UNAVAILABLE
    assert it.served.life.reason == "Internal: internal error; the server's log has the cause"
    assert "cannot be completed" in caplog.text


async def test_a_failure_on_a_leaving_executor_is_no_failure_of_the_model() -> None:
    it = World()
    session, stream = it.join()
    number = stream.sent[0].load.instance
    it.loader.executor_leaving(session)
    assert it.loader.streams.instance_opened(number, Stream()) is None
    it.loader.streams.instance_failed(
        session, number, ErrorStatus(14, "the scheduler refused the instance")
    )
    assert it.state is VersionState.LOADING
    it.loader.executor_left(session)
    _, stream = it.join()
    it.open(stream)
    assert it.served.life.serving


async def test_an_executor_that_joins_again_ends_its_old_session() -> None:
    it = World()
    session, stream = it.join("same")
    session.process = "1"
    it.open(stream, "1")
    other = Stream()
    again = Session(session.hello, other, "1")
    assert it.loader.executor_joined(again)
    assert stream.finished
    assert len(other.sent) == 2


async def test_a_surplus_instance_may_break_before_the_update_is_done() -> None:
    it = World(has_gpu=True)
    _, stream = it.join()
    streams = it.open(stream)
    assert it.served.runtime is not None
    placed = it.loader.streams.instance_opened(stream.sent[0].load.instance, breaking := Stream())
    assert placed is not None
    assert streams[0].finished
    other = model_config_pb2.ModelConfig()
    other.CopyFrom(it.served.runtime.config.proto)
    # None of the present instances fits.
    other.instance_group[0].kind = model_config_pb2.ModelInstanceGroup.KIND_GPU
    it.loader.update_instances(it.served, freeze_config(other))
    it.loader.streams.instance_closed(placed, breaking)
    new = [command.load.instance for command in stream.sent if command.HasField("load")][2:]
    assert all(it.loader.streams.instance_opened(number, Stream()) for number in new)
    assert it.served.life.serving
    assert it.served.runtime.dispatcher.instances == (2, 2)
    assert streams[1].finished


async def test_an_instance_that_is_unloaded_after_its_batch_does_not_count_in_an_update() -> None:
    it = World(WRITTEN.replace("count: 2", "count: 1"), has_gpu=True)
    _, stream = it.join()
    (old,) = it.open(stream)
    runtime = it.served.runtime
    assert runtime is not None
    one = runtime.config
    other = model_config_pb2.ModelConfig()
    other.CopyFrom(one.proto)
    other.instance_group[0].kind = model_config_pb2.ModelInstanceGroup.KIND_GPU
    # The only instance is busy while it is exchanged, and while that is undone.
    placed = it.loader.instances.placed[stream.sent[0].load.instance]
    placed.instance.keeps_sequences = True
    for config in (freeze_config(other), one):
        loads = len(stream.sent)
        it.loader.update_instances(it.served, config)
        for command in stream.sent[loads:]:
            if command.HasField("load"):
                assert it.loader.streams.instance_opened(command.load.instance, Stream())
    placed.instance.keeps_sequences = False
    placed.instance.on_idle()
    assert old.finished
    assert runtime.dispatcher.instances == (1, 1)
    assert it.served.life.serving


def with_groups(config: ModelConfig, *groups: str) -> ModelConfig:
    proto = model_config_pb2.ModelConfig()
    proto.CopyFrom(config.proto)
    del proto.instance_group[:]
    for group in groups:
        text_format.Parse(group + " kind: KIND_CPU", proto.instance_group.add())
    return freeze_config(proto)


async def test_instances_are_kept_whatever_their_groups_are_called() -> None:
    it = World()
    _, stream = it.join()
    it.open(stream)
    runtime = it.served.runtime
    assert runtime is not None
    commands = len(stream.sent)
    it.loader.update_instances(
        it.served, with_groups(runtime.config, 'name: "a" count: 1', 'name: "b" count: 1')
    )
    it.loader.update_instances(it.served, with_groups(runtime.config, "count: 2"))
    assert len(stream.sent) == commands
    it.loader.update_instances(
        it.served, with_groups(runtime.config, 'name: "a" count: 2', "count: 1")
    )
    (load,) = stream.sent[commands:]
    assert load.load.instance_name == "m_1_0"
    assert it.loader.streams.instance_opened(load.load.instance, Stream())
    # One that has the name of a slot keeps that.
    it.loader.update_instances(it.served, with_groups(runtime.config, "name: 'm_1' count: 1"))
    names = [each.instance.name for each in it.loader.instances.placed.values()]
    assert names == ["m_1_0"]


async def test_a_version_is_unloading_until_its_instances_have_ended() -> None:
    it = World()
    session, stream = it.join()
    gone, _ = it.join("gone")
    other, _ = it.join("other")
    it.open(stream)
    unloading = asyncio.create_task(it.loader.unload(it.served))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first, second = (command.load.instance for command in stream.sent if command.HasField("load"))
    assert [command.unload.instance for command in stream.sent[-2:]] == [first, second]
    for unloaded in ((session, first), (other, second)):
        it.loader.streams.instance_unloaded(*unloaded)
    it.loader.executor_left(gone)
    it.loader.executor_left(other)
    await asyncio.sleep(0)
    assert it.state is VersionState.UNLOADING
    assert it.served.runtime is None
    it.loader.streams.instance_unloaded(session, second)
    await unloading
    assert it.served.life.unloaded


async def test_an_executor_that_leaves_has_ended_what_it_unloaded() -> None:
    it = World()
    session, stream = it.join()
    it.open(stream)
    unloading = asyncio.create_task(it.loader.unload(it.served))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert it.state is VersionState.UNLOADING
    it.loader.executor_left(session)
    await unloading
    assert it.served.life.unloaded


@pytest.mark.parametrize("how", ["lost", "leaving", "unloaded"])
async def test_no_instance_is_loaded_that_is_unwanted_once_the_files_are_digested(
    tmp_path: Path, how: str
) -> None:
    """Nobody would ever report the end of a lost executor's, and the unload would wait for it."""
    # In a folder of its own: what is beside a version's folder is digested, too.
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"m")
    it = World(path=str(version), cache=CacheClient(FakeLink(), SECRETS, 5))
    session, stream = it.join()
    digests = list(it.loader.loads._revision_tasks)
    if how == "unloaded":
        it.loader.unload_now(it.served)
    else:
        if how == "leaving":
            it.loader.executor_leaving(session)
        it.loader.executor_left(session)
    async with asyncio.timeout(20):
        await asyncio.gather(*digests)
        assert stream.sent == []
        assert not it.loader.instances.placed
        if how != "unloaded":
            await it.loader.unload(it.served)
    assert it.served.life.unloaded


async def test_an_unload_does_not_wait_for_an_executor_that_is_gone() -> None:
    it = World()
    session, stream = it.join()
    streams = it.open(stream)
    model = it.served.runtime
    assert model is not None
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="I", datatype="UINT8", shape=[1])
    responses: list[InferResponse] = []
    model.submit(InferRequest(1, head.SerializeToString(), [b"x"]), responses.append)
    await turn()
    # It still executes when the executor's own time is over.
    it.loader.executor_leaving(session)
    it.loader.executor_left(session)
    assert len(it.loader.instances.placed) == 1
    async with asyncio.timeout(20):
        await it.loader.hand_over(it.served, 0.0)
    assert it.served.life.unloaded
    assert [each.error is not None for each in responses] == [True]
    assert any(each.finished for each in streams)


async def test_a_configuration_that_makes_no_sense_is_refused() -> None:
    it = World(WRITTEN + "max_batch_size: -1")
    assert it.state is VersionState.UNAVAILABLE
    assert it.served.life.reason.startswith("Invalid argument: ")
