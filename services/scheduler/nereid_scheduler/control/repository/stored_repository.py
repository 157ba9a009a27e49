"""A model repository in an object store, as the scheduler reads it: listings and configurations.

A listing that fails changes nothing: the models of the last one that did not are what there is. One
without models, where there were some, counts when the next one of its kind has none either: stores
and proxies that are being repaired list nothing, too. Executors fetch the files.
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
from nereid_scheduler.control.repository.store_calls import StoreCalls
from nereid_scheduler.core.models.revision import CONFIG_FILE, CONFIG_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from nereid.object_store.plans.listing import ModelListing, StoredObject

_log = logging.getLogger(__name__)

# Configurations and labels are read into memory.
_LARGEST_FILE: Final = 16 << 20
_READS_AT_A_TIME: Final = 16
# How long to wait for the store: for one model; for names, where those of the last listing are
# known, since each load of any model asks for them; for all objects, of which there may be any
# number.
_LIMIT_S: Final = 10.0
_NAMES_LIMIT_S: Final = 5.0
_LISTING_LIMIT_S: Final = 300.0

# In the log, between two listings that succeed.
_MOST_REASONS: Final = 16

# Models by their names, or their names alone.
_Models = TypeVar("_Models", bound="Collection[str]")


class _Content(NamedTuple):
    stored: StoredObject
    content: bytes


class _LastListing(Generic[_Models]):
    """models: None: no listing has succeeded. doubted: the last one was empty, these are older."""

    def __init__(self) -> None:
        self.models: _Models | None = None
        self.doubted = False


class StoredFolder:
    """A model's directory in an object store."""

    files = ()

    def __init__(
        self, repository: StoredRepository, name: str, listing: ModelListing | None = None
    ) -> None:
        """listing: of this model; None: it is listed when it is needed."""
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
        return sorted(self._listing.subfolders())

    def names_in(self, folder: str) -> list[str]:
        return self._listing.names_in(folder)

    def has_file(self, name: str) -> bool:
        return name in self._listing.files

    def read(self, name: str) -> bytes:
        stored = self._listing.files.get(name)
        if stored is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._repository.read(f"{self.path.name}/{name}", stored)

    def digest(self, version: int) -> bytes:
        return self._listing.digest(str(version))


class StoredRepository:
    """One repository; may be used by several threads."""

    def __init__(
        self, store: ObjectStore, config_name: str = "", limit_s: float = _LIMIT_S
    ) -> None:
        """config_name: --model-config-name, of the configurations that are read beforehand.
        limit_s: how long a client's request, or all other repositories, wait for the store.
        """
        self.store = store
        self._calls = StoreCalls(str(store.url))
        self._limit_s = limit_s
        self._config_names = [CONFIG_FILE]
        if config_name:
            self._config_names.append(f"{CONFIG_FOLDER}/{config_name}.pbtxt")
        self._lock = threading.Lock()
        self._models: _LastListing[dict[str, ModelListing]] = _LastListing()
        self._names: _LastListing[list[str]] = _LastListing()
        # Why the last listing failed; empty: it did not.
        self._problem = ""
        # The reasons in the log since it could be listed; they may take turns.
        self._logged: set[str] = set()
        # What was read of small files, by key.
        self._contents: dict[str, _Content] = {}

    @property
    def problem(self) -> str:
        """Why it could not be listed last; empty: it could."""
        return self._problem

    def list_all(self) -> dict[str, StoredFolder]:
        """All models with all of their files, by one listing. Raises StoreError: it failed, and so
        did all before.
        """
        before = self._models.models or {}
        models = self._list(self.store.list_models, self._models, _LISTING_LIMIT_S)
        if models is not before:
            self._read_configurations(models, changed_models(before, models))
            with self._lock:
                self._names.models = [*models]
        return {name: StoredFolder(self, name, each) for name, each in models.items()}

    def list_names(self) -> dict[str, StoredFolder]:
        """All models; their files are listed when they are needed. Raises StoreError as above."""
        limit_s = _LISTING_LIMIT_S
        if self._names.models is not None:
            limit_s = min(self._limit_s, _NAMES_LIMIT_S)
        names = self._list(self.store.model_names, self._names, limit_s)
        return {name: StoredFolder(self, name) for name in names}

    def list_model(self, name: str) -> ModelListing:
        """One model; without objects if there is none. Raises StoreError."""
        return self._calls.run(lambda: self.store.list_model(name), self._limit_s)

    def read(self, key: str, stored: StoredObject) -> bytes:
        """The content of a small object, which is read once. Raises StoreError."""
        known = self._contents.get(key)
        if known is not None and known.stored == stored:
            return known.content
        if stored.size > _LARGEST_FILE:
            raise StoreError(f"{self.store.url}/{key} has {stored.size} bytes: too large")
        content = self._calls.run(lambda: self.store.read_whole(key, stored), self._limit_s)
        with self._lock:
            self._contents[key] = _Content(stored, content)
        return content

    def _list(
        self, list_: Callable[[], _Models], last: _LastListing[_Models], limit_s: float
    ) -> _Models:
        """What there is by now: a new listing, or the last one. Raises StoreError."""
        try:
            models = self._calls.run(list_, limit_s)
        except StoreError as error:
            if last.models is None:
                raise
            self._note_problem(error.text)
            return last.models
        with self._lock:
            before = last.models
            last.doubted = bool(before) and not models and not last.doubted
            if not last.doubted:
                last.models = models
        if before is not None and last.doubted:
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
            if text in self._logged or len(self._logged) >= _MOST_REASONS:
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
        """Read those of models that have changed, several at a time. What cannot be read is read
        again, and reported, with its model.
        """
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
    paths: Sequence[str], environ: Mapping[str, str], config_name: str = ""
) -> dict[str, StoredRepository]:
    """Those of the repositories that are in object stores. Asks nothing of the stores yet."""
    return {
        path: StoredRepository(ObjectStore(parse_store_url(path), environ), config_name)
        for path in paths
        if is_store_url(path)
    }
