"""Downloads of model versions from object stores to this host, for executors."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nereid.object_store.cache import HostCache
from nereid.object_store.download import Downloader, SourceFile
from nereid.object_store.errors import MissingObjectError, ObjectChangedError
from nereid.object_store.plans.credentials import MOUNT_DIRECTORIES
from nereid.object_store.plans.urls import parse_store_url
from nereid.object_store.store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.object_store.cache import TreeLease
    from nereid.object_store.plans.urls import StoreUrl

_log = logging.getLogger(__name__)


class CachePlace(NamedTuple):
    """Directory of the cache (`None`: by environment or default) and its size (0: the disk's)."""

    directory: Path | None
    default_directory: Path
    limit_bytes: int = 0


class ModelStores:
    """All object stores, together with the host's cache; for several threads."""

    def __init__(
        self,
        environ: Mapping[str, str],
        place: CachePlace,
        open_store: Callable[[StoreUrl, Mapping[str, str]], ObjectStore] = ObjectStore,
        downloader: Downloader | None = None,
    ) -> None:
        self._environ = environ
        self._place = place
        self._open_store = open_store
        self._downloader = downloader or Downloader()
        self._lock = threading.Lock()
        self._stores: dict[str, ObjectStore] = {}
        self._caches: dict[Path, HostCache] = {}

    def close(self) -> None:
        """Start no further downloads."""
        self._downloader.close()

    def fetch(self, version_url: str, digest: bytes, cancelled: threading.Event) -> TreeLease:
        """Return a lease of the directory with one version's files; may raise StoreError.

        digest: ModelListing.digest. If the cache has the files, the store is not contacted.
        """
        url = parse_store_url(version_url)
        model = url.parent()
        tree = hashlib.blake2b(f"{url}\0{digest.hex()}".encode(), digest_size=20).hexdigest()
        cache = self._cache_for(url)
        lease = cache.find(tree, model.name)
        if lease is not None:
            return lease
        store = self._store_of(model.parent())
        listing = store.list_model(model.name)
        files = listing.version_files(url.name)
        if not files and url.name not in listing.subfolders():
            raise MissingObjectError(f"{url} does not exist any more")
        if listing.digest(url.name) != digest:
            raise ObjectChangedError(f"the files of {url} have changed since they were listed")
        sources = {
            path: SourceFile(
                f"{model}/{path}", stored, partial(store.read, f"{model.name}/{path}", stored)
            )
            for path, stored in files.items()
        }
        began = time.monotonic()
        folders = (url.name, *(folder for folder in listing.folders if _is_below(folder, url.name)))
        lease = cache.build(tree, model.name, sources, folders, cancelled)
        size = sum(stored.size for stored in files.values())
        _log.info(
            "fetched %s files=%d bytes=%d seconds=%.1f",
            url, len(files), size, time.monotonic() - began,
        )  # fmt: skip
        return lease

    def _cache_for(self, url: StoreUrl) -> HostCache:
        named = self._environ.get(MOUNT_DIRECTORIES[url.scheme], "")
        place = self._place
        directory = place.directory or (Path(named) if named else place.default_directory)
        with self._lock:
            cache = self._caches.get(directory)
            if cache is None:
                cache = HostCache(directory, place.limit_bytes, self._downloader)
                cache.prepare()
                self._caches[directory] = cache
            return cache

    def _store_of(self, url: StoreUrl) -> ObjectStore:
        with self._lock:
            if url.text not in self._stores:
                self._stores[url.text] = self._open_store(url, self._environ)
            return self._stores[url.text]


def _is_below(folder: str, version: str) -> bool:
    return folder.partition("/")[0] == version
