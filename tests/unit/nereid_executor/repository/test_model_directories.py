"""Versions that are prepared before their load: once for all who need them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from nereid.core.errors import InvalidArgument, Unavailable
from nereid.core.files.temporary_directories import OVERRIDE, TemporaryDirectory
from nereid.object_store.download import Downloader, DownloadRules
from nereid.object_store.stores import CachePlace, ModelStores
from nereid.pb import nereid_pb2 as pb
from nereid.repository_agents import AgentModel, RefusedError, RepositoryAgent
from nereid.rpc import BackoffOptions
from nereid_executor.backends.python.packages.model_packages import ModelPackages
from nereid_executor.repository.agents import RepositoryAgents
from nereid_executor.repository.model_directories import ModelDirectories
from nereid_executor.settings import ExecutorSettings
from tests.support.models.wheels import save_source, save_wheel
from tests.support.object_stores.memory_store import MemoryFiles

URL = "s3://b/models/m/1"


class Agent(RepositoryAgent):
    """Notes its calls; refuses if it is said to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refuses = False

    def before_load(self, model: AgentModel) -> None:
        self.calls.append("before")
        if self.refuses:
            raise RefusedError("refused")

    def after_unload(self, model: AgentModel) -> None:
        self.calls.append("after")


class Executor:
    def __init__(self, tmp_path: Path) -> None:
        self.files = MemoryFiles({"b/models/m/1/model.onnx": b"weights"})
        self.agent = Agent()
        place = CachePlace(tmp_path / "cache", tmp_path)
        downloader = Downloader(DownloadRules(backoff=BackoffOptions(first_s=0.001)))
        stores = ModelStores({}, place, self.files.open_store, downloader)
        agents = RepositoryAgents({"agent": lambda: self.agent})
        self.directories = ModelDirectories(
            lambda path: path.replace("/theirs", str(tmp_path)),
            stores,
            agents,
            ModelPackages(ExecutorSettings(model_environment_directory=str(tmp_path / "kept"))),
        )

    def command(self, path: str = URL, *, agent: bool = False) -> pb.LoadInstance:
        command = pb.LoadInstance(version_path=path)
        command.config.name = "m"
        if path == URL:
            listing = self.files.open_store("s3://b/models").list_model("m")
            command.files_digest = listing.digest("1")
        if agent:
            command.config.model_repository_agents.agents.add(name="agent")
        return command


@pytest.fixture
def executor(tmp_path: Path) -> Executor:
    return Executor(tmp_path)


def test_what_needs_preparation(executor: Executor) -> None:
    needs = executor.directories.needs_preparation
    assert needs(executor.command())
    assert needs(executor.command("/theirs/m/1", agent=True))
    assert not needs(executor.command("/theirs/m/1"))


async def test_a_load_requests_files_remain_while_they_are_loaded(executor: Executor) -> None:
    theirs = TemporaryDirectory.make(OVERRIDE)
    (theirs.path / "1").mkdir()
    command = executor.command(str(theirs.path / "1"))
    assert executor.directories.needs_preparation(command)
    prepared = await executor.directories.prepare(command)
    assert prepared.path == theirs.path / "1"
    theirs.release()
    assert prepared.path.is_dir()
    prepared.release()
    await executor.directories.close()
    assert not prepared.path.exists()


async def test_a_version_is_prepared_once_for_all(executor: Executor) -> None:
    command = executor.command(agent=True)
    both = await asyncio.gather(*(executor.directories.prepare(command) for _ in range(2)))
    assert both[0].path == both[1].path
    assert both[0].path.joinpath("model.onnx").read_bytes() == b"weights"
    assert executor.agent.calls == ["before"]
    both[0].release()
    both[0].release()
    third = await executor.directories.prepare(command)
    assert executor.agent.calls == ["before"]
    both[1].release()
    third.release()
    # After the end of the last one the next begins anew.
    last = await executor.directories.prepare(command)
    assert executor.agent.calls == ["before", "after", "before"]
    last.release()
    await executor.directories.close()
    assert executor.agent.calls == ["before", "after", "before", "after"]


async def test_local_files_that_change_are_checked_again(
    executor: Executor, tmp_path: Path
) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"one")
    command = executor.command("/theirs/m/1", agent=True)
    first = await executor.directories.prepare(command)
    assert first.path == version
    (version / "model.onnx").write_bytes(b"another")
    await executor.directories.prepare(command)
    assert executor.agent.calls == ["before", "before"]
    await executor.directories.close()


async def test_a_refusal_is_an_error_for_all(executor: Executor) -> None:
    executor.agent.refuses = True
    command = executor.command(agent=True)
    errors = await asyncio.gather(
        *(executor.directories.prepare(command) for _ in range(2)), return_exceptions=True
    )
    assert [type(each) for each in errors] == [InvalidArgument] * 2
    executor.agent.refuses = False
    prepared = await executor.directories.prepare(command)
    prepared.release()
    await executor.directories.close()
    assert executor.agent.calls == ["before", "before", "after"]


async def test_a_store_that_fails(executor: Executor) -> None:
    def fail() -> None:
        raise ConnectionRefusedError("nobody listens")

    command = executor.command()
    executor.files.before_list = fail
    with pytest.raises(Unavailable, match="ConnectionRefusedError: nobody listens"):
        await executor.directories.prepare(command)
    await executor.directories.close()


async def test_a_description_is_followed_by_its_load(executor: Executor) -> None:
    command = executor.command(agent=True)
    prepared = await executor.directories.prepare(command)
    executor.directories.release_soon(prepared)
    (await executor.directories.prepare(command)).release()
    assert executor.agent.calls == ["before"]
    await executor.directories.close()
    assert executor.agent.calls == ["before", "after"]


async def test_a_fetch_that_nobody_waits_for_ends(executor: Executor) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        began.set()
        go_on.wait(10)
        raise TimeoutError

    executor.files.before_read = wait
    task = asyncio.ensure_future(executor.directories.prepare(executor.command()))
    await asyncio.to_thread(began.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await executor.directories.close()
    assert len(executor.files.reads) == 1


def python_model(tmp_path: Path, requirements: str) -> pb.LoadInstance:
    (tmp_path / "p" / "1").mkdir(parents=True)
    (tmp_path / "p" / "1" / "requirements.txt").write_text(requirements)
    save_wheel(tmp_path / "p" / "wheels", "alpha", "1.0")
    command = pb.LoadInstance(version_path="/theirs/p/1")
    command.config.name, command.config.backend = "p", "python"
    return command


@pytest.mark.slow
async def test_all_who_need_a_version_share_its_environment(
    executor: Executor, tmp_path: Path
) -> None:
    command = python_model(tmp_path, "alpha")
    assert executor.directories.needs_preparation(command)
    texts: list[str] = []
    both = await asyncio.gather(
        *(executor.directories.prepare(command, texts.append) for _ in range(2))
    )
    (environment,) = {prepared.environment for prepared in both}
    assert environment is not None
    assert (environment / "bin" / "python").exists()
    assert texts[0] == "resolving its packages"
    assert texts[-2:] == ["", ""]
    for prepared in both:
        assert prepared.path == tmp_path / "p" / "1"
        prepared.release()
    (tmp_path / "p" / "1" / "requirements.txt").unlink()
    assert (await executor.directories.prepare(command)).environment is None


@pytest.mark.slow
async def test_an_installation_ends_when_nobody_needs_it(
    executor: Executor, tmp_path: Path
) -> None:
    command = python_model(tmp_path, "endless")
    endless = "print('begun', flush=True); import threading; threading.Event().wait()"
    save_source(tmp_path / "p" / "wheels", "endless", "1.0", endless)
    begun = asyncio.Event()
    first, second = (
        asyncio.ensure_future(executor.directories.prepare(command, lambda _: begun.set()))
        for _ in range(2)
    )
    await begun.wait()
    first.cancel()
    await asyncio.wait([first])
    assert not second.done()
    second.cancel()
    await asyncio.wait([second])
    await executor.directories.close()
    assert list((tmp_path / "kept" / "environments").iterdir()) == []
