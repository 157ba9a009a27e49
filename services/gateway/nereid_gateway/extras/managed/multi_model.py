"""Multi-model mode: SageMaker loads, lists and unloads models through the mesh's model control."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from nereid.core.errors import AlreadyExists, InvalidArgument, NereidError, NotFound, Unavailable
from nereid.pb import kserve_pb2
from nereid_gateway.extras.managed.archives import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from nereid_gateway.extras.managed.archives import Archive, Archives
    from nereid_gateway.plane.control.control import Control

_log = logging.getLogger(__name__)

# The platform waits for six minutes.
_UNLOAD_TIMEOUT_S: Final = 350.0
_POLL_S: Final = 0.1
_MAX_BODY_BYTES: Final = 65536
# A model in one of these states serves requests, or soon will.
_SERVED: Final = frozenset({"READY", "LOADING"})
_UNLOADING: Final = frozenset({"READY", "LOADING", "UNLOADING"})


def parse_load(body: bytes) -> tuple[str, str]:
    """Return the key and the directory in a load request, or raise InvalidArgument."""
    if len(body) > _MAX_BODY_BYTES:
        raise InvalidArgument(f"a load request has at most {_MAX_BODY_BYTES} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("the load request is not JSON") from error
    members = document if type(document) is dict else {}
    key, url = members.get("model_name"), members.get("url")
    if type(key) is not str or type(url) is not str:
        raise InvalidArgument("a load request needs the texts 'model_name' and 'url'")
    if "\0" in url:
        raise InvalidArgument("url has a NUL character")
    return check_key(key), url


class MultiModel:
    """Archives of one repository, whose models the mesh serves."""

    def __init__(self, control: Control, archives: Archives) -> None:
        self._control = control
        self._archives = archives
        # Key: an archive. Value: its model. Further invocations then read no file.
        self._models: dict[str, str] = {}
        # Key: an archive. The lock is held while the archive is loaded or unloaded.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def known_model(self, key: str) -> str | None:
        """Return the model that serves an archive, or None if it has not been looked up yet."""
        return self._models.get(key)

    def find_model(self, key: str) -> str:
        """Read an archive's record and return its model, or raise NotFound."""
        model = self._models[key] = self._archives.find(key).model
        return model

    async def list(self) -> list[Archive]:
        """Return the archives whose models are ready."""
        archives = await asyncio.to_thread(self._archives.all)
        ready = await self._names_in({"READY"}) if archives else set()
        return [archive for archive in archives if archive.model in ready]

    async def describe(self, key: str) -> Archive:
        """Return the archive with this key, or raise NotFound."""
        return await asyncio.to_thread(self._archives.find, key)

    async def load(
        self, key: str, url: str, target_model: str, limit: Callable[[bytes], bytes] = bytes
    ) -> None:
        """Add an archive and load its model, even if the client disconnects.

        limit: adds the models that the client may load. Raises AlreadyExists, or NereidError if the
        archive cannot be loaded.
        """
        await self._run(self._load(key, url, target_model, limit))

    async def unload(self, key: str) -> None:
        """Unload an archive's models, even if the client disconnects.

        The call returns when the last requests of the models are complete. Raises NotFound if the
        archive is not loaded.
        """
        await self._run(self._unload(key))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _load(
        self, key: str, url: str, target_model: str, limit: Callable[[bytes], bytes]
    ) -> None:
        async with self._lock(key):
            try:
                known = await asyncio.to_thread(self._archives.find, key)
            except NotFound:
                pass
            else:
                if known.model in await self._names_in(_SERVED):
                    raise AlreadyExists(f"model '{key}' is loaded already")
                # The archive is left over from a mesh that has ended.
                await self._forget(known)
            try:
                archive = await asyncio.to_thread(self._archives.add, key, url, target_model)
            except OSError as error:
                reason = error.strerror or str(error)
                raise InvalidArgument(f"model '{key}' cannot be added: {reason}") from error
            _log.info("loading model: archive=%s model=%s url=%s", key, archive.model, url)
            request = kserve_pb2.RepositoryModelLoadRequest(model_name=archive.model)
            try:
                await self._control.load(limit(request.SerializeToString()))
            except NereidError:
                await self._give_up(archive)
                raise

    async def _give_up(self, archive: Archive) -> None:
        """Unload and forget an archive whose load has failed. Some models may be loaded."""
        try:
            await self._unload_models(archive)
        except NereidError as error:
            _log.warning("model '%s' could not be unloaded: %s", archive.model, error.message)
        await self._forget(archive)

    async def _unload(self, key: str) -> None:
        async with self._lock(key):
            archive = await asyncio.to_thread(self._archives.find, key)
            _log.info("unloading model: archive=%s model=%s", key, archive.model)
            await self._unload_models(archive)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + _UNLOAD_TIMEOUT_S
            models = set(archive.models)
            while not models.isdisjoint(await self._names_in(_UNLOADING)):
                if loop.time() > deadline:
                    raise Unavailable(f"model '{key}' still has requests")
                await asyncio.sleep(_POLL_S)
            await self._forget(archive)

    async def _unload_models(self, archive: Archive) -> None:
        # The steps of an ensemble were loaded for this ensemble, so they are unloaded as well.
        for name in archive.models:
            await self._control.call(
                "RepositoryModelUnload",
                kserve_pb2.RepositoryModelUnloadRequest(model_name=name),
                kserve_pb2.RepositoryModelUnloadResponse,
            )

    async def _forget(self, archive: Archive) -> None:
        self._models.pop(archive.key, None)
        await asyncio.to_thread(self._archives.remove, archive)

    async def _names_in(self, states: Collection[str]) -> set[str]:
        index = await self._control.call(
            "RepositoryIndex",
            kserve_pb2.RepositoryIndexRequest(),
            kserve_pb2.RepositoryIndexResponse,
        )
        return {model.name for model in index.models if model.state in states}

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())
