"""A model repository in an object store, as the scheduler reads it: listings and configurations.

If a listing fails, the last successful one counts. A listing that is suddenly empty counts only if
the next one is empty too: a store that is being repaired may list nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from nereid.object_store.errors import StoreError
from nereid.object_store.plans.listing import changed_models
from nereid.object_store.plans.urls import is_store_url, parse_store_url
from nereid.object_store.store import ObjectStore
from nereid_scheduler.control.repository.config_files import ConfigFiles
from nereid_scheduler.control.repository.store_calls import StoreCalls
from nereid_scheduler.core.models.text_files import TextFiles, find_text_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from nereid.object_store.plans.listing import ModelListing, StoredObject

_log = logging.getLogger(__name__)

_MAX_FILE_BYTES: Final = 16 << 20
_MAX_KEPT_BYTES: Final = 256 << 10
_READS_AT_A_TIME: Final = 16
# Seconds to wait for one model, for all names (each load asks for them), and for all objects.
_LIMIT_S: Final = 10.0
_CONFIG_FILES: Final = ConfigFiles()
_NAMES_LIMIT_S: Final = 5.0
_LISTING_LIMIT_S: Final = 300.0

_MAX_REASONS: Final = 16

_Models = TypeVar("_Models", bound="Collection[str]")


class _Content(NamedTuple):
    stored: StoredObject
    content: bytes


class _LastListing(Generic[_Models]):
    def __init__(self) -> None:
        self.models: _Models | None = None
        # True if the last listing was empty, and `models` are those of an earlier one.
        self.was_suddenly_empty = False


class StoredFolder:
    """Model directory in an object store."""

    files = ()

    def __init__(
        self, repository: StoredRepository, name: str, listing: ModelListing | None = None
    ) -> None:
        self._repository = repository
        self._known = listing
        self.path = Path(name)
        self.url = f"{repository.store.url}/{name}"

    @property
    def _listing(self) -> ModelListing:
        if self._known is None:
            self._known = self._repository.list_model(self.path.name)
        return self._known

    def subfolders(self) -> list[str]:
        """Return the names of the folders in the directory."""
        return sorted(self._listing.subfolders())

    def names_in(self, folder: str) -> list[str]:
        """Return the names of everything in one of the directory's folders."""
        return self._listing.names_in(folder)

    def has_file(self, name: str) -> bool:
        """Return whether there is a file at this path in the directory."""
        return name in self._listing.files

    def read(self, name: str) -> bytes:
        """Return a small file's content; raise FileNotFoundError if there is none."""
        stored = self._listing.files.get(name)
        if stored is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._repository.read(f"{self.path.name}/{name}", stored)

    def digest(self, version: int) -> bytes:
        """Return a digest of a version's files and of the files that all versions share."""
        return self._listing.digest(str(version))

    def text_files(self, place: str) -> TextFiles:
        """Return the files of text models in a version's folder, and beside it."""
        objects = self._listing.files
        paths = find_text_files(place, self.has_file)

        def read(name: str, limit: int) -> bytes:
            stored, key = objects[paths[name]], f"{self.path.name}/{paths[name]}"
            if stored.size > limit:
                raise OSError(errno.EFBIG, f"it has more than {limit} bytes", name)
            if stored.size > _MAX_KEPT_BYTES:
                return self._repository.read_once(key, stored)
            # Each listing asks for the small files of models without a configuration.
            return self._repository.read(key, stored)

        states = {name: f"{objects[path].size}:{objects[path].tag}" for name, path in paths.items()}
        return TextFiles(states, read)


class StoredRepository:
    """One repository in an object store. Several threads may use it."""

    def __init__(
        self,
        store: ObjectStore,
        config_files: ConfigFiles = _CONFIG_FILES,
        limit_s: float = _LIMIT_S,
    ) -> None:
        self.store = store
        self._calls = StoreCalls(str(store.url))
        self._limit_s = limit_s
        self._config_names = config_files.paths()
        self._lock = threading.Lock()
        self._models: _LastListing[dict[str, ModelListing]] = _LastListing()
        self._names: _LastListing[list[str]] = _LastListing()
        # Empty if the last listing succeeded.
        self._problem = ""
        self._logged: set[str] = set()
        self._contents: dict[str, _Content] = {}

    @property
    def problem(self) -> str:
        """Reason why the last listing of the repository failed; empty if it succeeded."""
        return self._problem

    def list_all(self) -> dict[str, StoredFolder]:
        """Return all models with all files, from one listing. May raise StoreError."""
        before = self._models.models or {}
        models = self._list(self.store.list_models, self._models, _LISTING_LIMIT_S)
        if models is not before:
            self._read_configurations(models, changed_models(before, models))
            with self._lock:
                self._names.models = [*models]
        return {name: StoredFolder(self, name, listing) for name, listing in models.items()}

    def list_names(self) -> dict[str, StoredFolder]:
        """Return all models without their files; raise StoreError as `list_all` does."""
        limit_s = _LISTING_LIMIT_S
        if self._names.models is not None:
            limit_s = min(self._limit_s, _NAMES_LIMIT_S)
        names = self._list(self.store.model_names, self._names, limit_s)
        return {name: StoredFolder(self, name) for name in names}

    def list_model(self, name: str) -> ModelListing:
        """Return the listing of one model, empty if there is none. May raise StoreError."""
        return self._calls.run(lambda: self.store.list_model(name), self._limit_s)

    def read(self, key: str, stored: StoredObject) -> bytes:
        """Return the content of a small object. It is fetched only once. May raise StoreError."""
        known = self._contents.get(key)
        if known is not None and known.stored == stored:
            return known.content
        if stored.size > _MAX_FILE_BYTES:
            raise StoreError(f"{self.store.url}/{key} has {stored.size} bytes: too large")
        content = self.read_once(key, stored)
        with self._lock:
            self._contents[key] = _Content(stored, content)
        return content

    def read_once(self, key: str, stored: StoredObject) -> bytes:
        """Return the content of an object, and do not keep it. May raise StoreError."""
        return self._calls.run(lambda: self.store.read_whole(key, stored), self._limit_s)

    def _list(
        self, list_: Callable[[], _Models], last: _LastListing[_Models], limit_s: float
    ) -> _Models:
        """Return a new listing; if listing fails, return the last one or raise StoreError."""
        try:
            models = self._calls.run(list_, limit_s)
        except StoreError as error:
            if last.models is None:
                raise
            self._note_problem(error.text)
            return last.models
        with self._lock:
            before = last.models
            last.was_suddenly_empty = bool(before) and not models and not last.was_suddenly_empty
            if not last.was_suddenly_empty:
                last.models = models
        if before is not None and last.was_suddenly_empty:
            self._note_problem(
                "it has no models, where there were some; "
                "if the next one has none, they are unloaded"
            )
            return before
        self._end_problem()
        return models

    def _note_problem(self, text: str) -> None:
        with self._lock:
            self._problem = text
            if text in self._logged or len(self._logged) >= _MAX_REASONS:
                return
            self._logged.add(text)
        _log.error(
            "the listing of model repository %s is not used, its models remain as they are: %s",
            self.store.url,
            text,
        )

    def _end_problem(self) -> None:
        with self._lock:
            known, self._problem = self._problem, ""
            self._logged.clear()
        if known:
            _log.info("model repository %s can be listed again", self.store.url)

    def _read_configurations(self, models: Mapping[str, ModelListing], changed: set[str]) -> None:
        with self._lock:
            for key in [key for key in self._contents if key.partition("/")[0] not in models]:
                del self._contents[key]
        wanted = [
            (f"{model}/{name}", models[model].files[name])
            for model in sorted(changed & models.keys())
            for name in self._config_names
            if name in models[model].files
        ]

        def read(key: str, stored: StoredObject) -> None:
            try:
                self.read(key, stored)
            except StoreError as error:
                _log.debug("%s", error)

        if wanted:
            with ThreadPoolExecutor(_READS_AT_A_TIME, "store-config") as pool:
                list(pool.map(read, *zip(*wanted, strict=True)))


def open_stored_repositories(
    paths: Sequence[str], environ: Mapping[str, str], config_files: ConfigFiles
) -> dict[str, StoredRepository]:
    """Return the repositories that are in object stores. Do not call the stores yet."""
    return {
        path: StoredRepository(ObjectStore(parse_store_url(path), environ), config_files)
        for path in paths
        if is_store_url(path)
    }
