"""A model repository in an object store: listings of its objects, and reads of listed objects."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from nereid.core.files.model_folders import may_be_model
from nereid.object_store.bounds import operation
from nereid.object_store.errors import AccessRefusedError, StoreError
from nereid.object_store.file_systems import open_files, store_error
from nereid.object_store.plans.listing import ModelListing, is_plain_key, split_into_models

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.object_store.file_systems import Chunk, StoreFiles
    from nereid.object_store.plans.listing import StoredObject
    from nereid.object_store.plans.urls import StoreUrl

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
# GCS and Azure list up to 5000 objects in a page.
_MAX_PAGE_BYTES: Final = 32 << 20


class _Found(NamedTuple):
    files: dict[str, StoredObject]
    folders: list[str]


class ObjectStore:
    """One repository, for several threads. Every method may raise StoreError."""

    def __init__(
        self,
        url: StoreUrl,
        environ: Mapping[str, str],
        open_files: Callable[[StoreUrl, Mapping[str, str]], StoreFiles] = open_files,
    ) -> None:
        """Create a repository that is not opened yet. `environ` has the credentials' variables."""
        self.url = url
        self._environ = environ
        self._open_files = open_files
        self._files: StoreFiles | None = None
        self._lock = threading.Lock()

    def list_models(self) -> dict[str, ModelListing]:
        """Return all models by name; a repository that does not exist is an error."""
        listing = self._list(self.url.path)
        if not (listing.files or listing.folders):
            self._call(self.url.text, lambda files: files.require(self.url.path))
        return split_into_models(listing.files, listing.folders)

    def list_model(self, name: str) -> ModelListing:
        """Return the listing of one model; it is empty if there is no such model."""
        return ModelListing(*self._list(f"{self.url.path}/{name}"))

    def model_names(self) -> list[str]:
        """Return the names of all models, from a listing of the repository's folders alone."""

        def list_names(files: StoreFiles) -> list[str]:
            files.forget_listings()
            return files.folder_names(self.url.path)

        names = self._call(self.url.text, list_names)
        return [name for name in names if is_plain_key(name) and may_be_model(name)]

    def read(self, key: str, stored: StoredObject, start: int, end: int) -> Chunk:
        """Return bytes start to end - 1 of an object; may raise ObjectChangedError."""
        path = f"{self.url.path}/{key}"
        return self._call(
            f"{self.url}/{key}", lambda files: files.read(path, stored, start, end), end - start
        )

    def read_whole(self, key: str, stored: StoredObject) -> bytes:
        """Return the whole content of a small object."""
        content = self.read(key, stored, 0, stored.size).content if stored.size else b""
        if len(content) != stored.size:
            raise StoreError(f"{self.url}/{key}: received {len(content)} bytes of {stored.size}")
        return content

    def _list(self, path: str) -> _Found:
        def find(files: StoreFiles) -> _Found:
            files.forget_listings()
            listing = _Found({}, [])
            for name, info in files.find(path).items():
                key = name.strip("/").removeprefix(path.strip("/")).strip("/")
                if not key:
                    continue
                if not is_plain_key(key):
                    _log.warning("object %r of %s is no path; it is ignored", key, self.url)
                elif name.endswith("/") or info["type"] == "directory":
                    listing.folders.append(key)
                else:
                    listing.files[key] = files.describe(info)
            return listing

        return self._call(self.url.text, find)

    def _call(
        self,
        what: str,
        call: Callable[[StoreFiles], _Result],
        response_bytes: int = _MAX_PAGE_BYTES,
    ) -> _Result:
        files = self._open()
        try:
            with operation(response_bytes):
                return call(files)
        except Exception as error:
            known = store_error(what, error)
            if not isinstance(known, AccessRefusedError):
                raise known from error
        # The credentials may have been replaced, so open the store once more.
        files = self._open(refused=files)
        try:
            with operation(response_bytes):
                return call(files)
        except Exception as error:
            raise store_error(what, error) from error

    def _open(self, refused: StoreFiles | None = None) -> StoreFiles:
        with self._lock:
            if self._files is None or self._files is refused:
                self._files = self._open_files(self.url, self._environ)
            return self._files
