"""Model directories that must be prepared before a load: fetched, or run through agents."""

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
    from nereid_executor.core.model_files import ModelFiles
    from nereid_executor.repository.agents import AgentRun, RepositoryAgents

_log = logging.getLogger(__name__)

# Seconds for which a described version stays prepared, for the load that follows.
DESCRIBED_S: Final = 30.0
_CLOSE_TIMEOUT_S: Final = 5.0
# Most threads wait for a store, or for another process that fetches the same files.
_THREADS: Final = 8

_Result = TypeVar("_Result")
_Key = tuple[str, bytes, bytes, "ModelFiles | None"]


@dataclass(eq=False)
class _Version:
    key: _Key
    task: asyncio.Task[Path] = field(init=False)
    users: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)
    lease: TreeLease | TemporaryDirectory | None = None
    runs: list[AgentRun] = field(default_factory=list)


class PreparedVersion:
    """The directory of a version. It stays ready until release()."""

    def __init__(self, path: Path, release: Callable[[], None]) -> None:
        self.path = path
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give up the directory. Further calls have no effect."""
        release, self._release = self._release, None
        if release is not None:
            release()


class ModelDirectories:
    """The prepared model directories of one executor."""

    def __init__(
        self, local_path: Callable[[str], str], stores: ModelStores, agents: RepositoryAgents
    ) -> None:
        self._local_path = local_path
        self._stores = stores
        self._agents = agents
        self._pool = ThreadPoolExecutor(_THREADS, "model-files")
        self._versions: dict[_Key, _Version] = {}
        # Key: an ended version. Value: the task that tells its agents so.
        self._ending: dict[_Key, asyncio.Task[None]] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    @staticmethod
    def needs_preparation(command: pb.Describe | pb.LoadInstance) -> bool:
        """Return whether a version cannot be loaded directly from the scheduler's path."""
        agents, path = command.config.model_repository_agents.agents, command.version_path
        return bool(agents) or is_store_url(path) or _is_override(path)

    async def prepare(self, command: pb.Describe | pb.LoadInstance) -> PreparedVersion:
        """Prepare a version, or wait until it is prepared; NereidError if that fails."""
        config, path = command.config, command.version_path
        agents = config.model_repository_agents.SerializeToString(deterministic=True)
        files = None
        if not is_store_url(path):
            # If a file has changed, the agents must see it again.
            files = await self._run(lambda: read_model_files(Path(self._local_path(path))))
        key = (path, command.files_digest, agents + config.name.encode(), files)
        version = self._versions.get(key)
        if version is None:
            version = self._versions[key] = _Version(key)
            version.task = asyncio.ensure_future(self._prepare(version, config))
        version.users += 1
        try:
            ready = await asyncio.shield(version.task)
        except BaseException:
            self._release(version)
            raise
        return PreparedVersion(ready, lambda: self._release(version))

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
        self._stores.close()

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _prepare(self, version: _Version, config: config_pb.ModelConfig) -> Path:
        ending = self._ending.get(version.key)
        if ending is not None:
            await asyncio.wait([ending])
        try:
            return await self._run(lambda: self._prepare_blocking(version, config))
        except NereidError:
            raise
        except StoreError as error:
            raise Unavailable(error.text) from error
        except Exception as error:
            _log.exception("the files of %s cannot be prepared", version.key[0])
            raise Internal(INTERNAL_MESSAGE) from error

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
        if version.lease is not None:
            await self._run(version.lease.release)


def _is_override(path: str) -> bool:
    return is_temporary(Path(path).parent, OVERRIDE)
