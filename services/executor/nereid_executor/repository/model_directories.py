"""Versions that must be prepared before a load.

Their files are fetched, or run through agents, and their packages are installed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, Unavailable
from nereid.core.files.temporary_directories import OVERRIDE, TemporaryDirectory, is_temporary
from nereid.object_store.errors import StoreError
from nereid.object_store.plans.urls import is_store_url
from nereid_executor.core.model_files import read_model_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.object_store.cache import TreeLease
    from nereid.object_store.stores import ModelStores
    from nereid.pb import model_config_pb2 as config_pb
    from nereid.pb import nereid_pb2 as pb
    from nereid_executor.backends.python.packages.environment_cache import EnvironmentLease
    from nereid_executor.backends.python.packages.model_packages import ModelPackages
    from nereid_executor.core.model_files import ModelFiles
    from nereid_executor.repository.agents import AgentRun, RepositoryAgents

_log = logging.getLogger(__name__)

# Seconds for which a described version stays prepared, for the load that follows.
DESCRIBED_S: Final = 30.0
_CLOSE_TIMEOUT_S: Final = 5.0
# Most threads wait for a store, or for another process that fetches the same files.
_THREADS: Final = 8
# Installations take minutes, so they have threads of their own.
_BUILDS: Final = 4

_Result = TypeVar("_Result")
_Key = tuple[str, bytes, bytes, "ModelFiles | None"]


@dataclass(eq=False)
class _Version:
    key: _Key
    task: asyncio.Task[Path] = field(init=False)
    users: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)
    lease: TreeLease | TemporaryDirectory | None = None
    # `None` if the version names no packages.
    environment: EnvironmentLease | None = None
    progress: str = ""
    listeners: list[Callable[[str], None]] = field(default_factory=list)
    runs: list[AgentRun] = field(default_factory=list)


class PreparedVersion:
    """The directory of a version, and its environment. They stay ready until release()."""

    def __init__(
        self, path: Path, release: Callable[[], None], environment: Path | None = None
    ) -> None:
        self.path = path
        # Environment with the packages that the version names; `None` if it names none.
        self.environment = environment
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give up the directory. Further calls have no effect."""
        release, self._release = self._release, None
        if release is not None:
            release()


class ModelDirectories:
    """The prepared model directories of one executor."""

    def __init__(
        self,
        local_path: Callable[[str], str],
        stores: ModelStores,
        agents: RepositoryAgents,
        packages: ModelPackages,
    ) -> None:
        self._local_path = local_path
        self._stores = stores
        self._agents = agents
        self._packages = packages
        self._pool = ThreadPoolExecutor(_THREADS, "model-files")
        self._builds = ThreadPoolExecutor(_BUILDS, "model-packages")
        self._versions: dict[_Key, _Version] = {}
        # Key: an ended version. Value: the task that tells its agents so.
        self._ending: dict[_Key, asyncio.Task[None]] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    def needs_preparation(self, command: pb.Describe | pb.LoadInstance) -> bool:
        """Return whether a version cannot be loaded directly from the scheduler's path."""
        return _needs_files(command) or self._packages.may_apply(command.config)

    async def prepare(
        self,
        command: pb.Describe | pb.LoadInstance,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> PreparedVersion:
        """Prepare a version, or wait until it is prepared; NereidError if that fails.

        on_progress is called with texts that say what is done, and with an empty one at the end.
        """
        config, path = command.config, command.version_path
        if not _needs_files(command):
            local = Path(self._local_path(path))
            # Threads of the pool may all wait for a store.
            if await asyncio.to_thread(self._packages.find, config, local) is None:
                return PreparedVersion(local, lambda: None)
        agents = config.model_repository_agents.SerializeToString(deterministic=True)
        model = f"{config.name}/{config.default_model_filename}".encode()
        files = None
        if not is_store_url(path):
            # If a file has changed, the agents must see it again.
            files = await self._run(lambda: read_model_files(Path(self._local_path(path))))
        key = (path, command.files_digest, agents + model, files)
        version = self._versions.get(key)
        if version is None:
            version = self._versions[key] = _Version(key)
            version.task = asyncio.ensure_future(self._prepare(version, command))
        version.users += 1
        version.listeners.append(on_progress)
        if version.progress:
            on_progress(version.progress)
        try:
            ready = await asyncio.shield(version.task)
        except BaseException:
            self._release(version)
            raise
        finally:
            version.listeners.remove(on_progress)
        environment = None if version.environment is None else version.environment.path
        return PreparedVersion(ready, lambda: self._release(version), environment)

    def release_soon(self, prepared: PreparedVersion) -> None:
        """Release a version after a while, so that it is still prepared if a load follows."""

        def release() -> None:
            self._timers.discard(timer)
            prepared.release()

        timer = asyncio.get_running_loop().call_later(DESCRIBED_S, release)
        self._timers.add(timer)

    async def close(self) -> None:
        """Give up all fetches. Wait a limited time while agents are told that models have ended."""
        for timer in self._timers:
            timer.cancel()
        for version in [*self._versions.values()]:
            version.users = 1
            self._release(version)
        if self._ending:
            await asyncio.wait([*self._ending.values()], timeout=_CLOSE_TIMEOUT_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._builds.shutdown(wait=False, cancel_futures=True)
        self._stores.close()

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _prepare(self, version: _Version, command: pb.Describe | pb.LoadInstance) -> Path:
        ending = self._ending.get(version.key)
        if ending is not None:
            await asyncio.wait([ending])
        config = command.config
        try:
            path = Path(self._local_path(command.version_path))
            if _needs_files(command):
                path = await self._run(lambda: self._prepare_blocking(version, config))
            await self._install_packages(version, config, path)
            return path
        except NereidError:
            raise
        except StoreError as error:
            raise Unavailable(error.text) from error
        except Exception as error:
            _log.exception("the files of %s cannot be prepared", version.key[0])
            raise Internal(INTERNAL_MESSAGE) from error

    async def _install_packages(
        self, version: _Version, config: config_pb.ModelConfig, path: Path
    ) -> None:
        request = await asyncio.to_thread(self._packages.find, config, path)
        if request is None:
            return
        loop = asyncio.get_running_loop()

        def on_progress(text: str) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_progress, version, text)

        def lease() -> EnvironmentLease:
            return self._packages.lease(config.name, request, version.cancelled, on_progress)

        version.environment = await loop.run_in_executor(self._builds, lease)
        self._on_progress(version, "")

    @staticmethod
    def _on_progress(version: _Version, text: str) -> None:
        if version.progress != text:
            version.progress = text
            for listener in version.listeners:
                listener(text)

    def _prepare_blocking(self, version: _Version, config: config_pb.ModelConfig) -> Path:
        path, digest, _, _ = version.key
        number = path.rpartition("/")[2]
        if is_store_url(path):
            version.lease = self._stores.fetch(path, digest, version.cancelled)
            directory = version.lease.path
        else:
            directory = Path(self._local_path(path)).parent
            if _is_override(path):
                # If the directory is missing, the load will report that.
                with suppress(OSError):
                    version.lease = TemporaryDirectory(directory)
        directory, version.runs = self._agents.before_load(config, int(number), directory)
        return directory / number

    def _release(self, version: _Version) -> None:
        version.users -= 1
        if version.users or self._versions.get(version.key) is not version:
            return
        del self._versions[version.key]
        version.cancelled.set()
        ending = self._ending[version.key] = asyncio.ensure_future(self._end(version))
        ending.add_done_callback(lambda _: self._forget(version.key, ending))

    def _forget(self, key: _Key, ending: asyncio.Task[None]) -> None:
        if self._ending.get(key) is ending:
            del self._ending[key]

    async def _end(self, version: _Version) -> None:
        with suppress(NereidError):
            await version.task
        if version.runs:
            await self._run(lambda: self._agents.after_unload(version.runs))
        if version.environment is not None:
            version.environment.release()
        if version.lease is not None:
            await self._run(version.lease.release)


def _needs_files(command: pb.Describe | pb.LoadInstance) -> bool:
    agents, path = command.config.model_repository_agents.agents, command.version_path
    return bool(agents) or is_store_url(path) or _is_override(path)


def _is_override(path: str) -> bool:
    return is_temporary(Path(path).parent, OVERRIDE)
