"""A cache of models from object stores, shared by all processes of a host.

objects/ holds complete files, partial/ incomplete ones. trees/ holds model directories: hard links
to objects, which never change. locks/ holds one file per tree, locked by its users. A process may
be killed at any time, so there is no index.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from nereid.object_store.errors import CacheFullError, DamagedObjectError, StoreError
from nereid.object_store.file_locks import locked, try_lock, wait_for_lock
from nereid.object_store.plans.cache_plan import (
    CacheContent,
    CachedObject,
    CachedTree,
    plan_eviction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nereid.object_store.download import Downloader, SourceFile

_MANIFEST: Final = "objects"
_PARTIAL: Final = "partial/"
_TEMPORARY: Final = ".tmp"
_OBJECTS_AT_A_TIME: Final = 4
# Another process may evict the object before it is linked, so try again.
_ATTEMPTS: Final = 3
_UNSUPPORTED: Final = frozenset({errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV})


class _Abort(threading.Event):
    def __init__(self, parent: threading.Event) -> None:
        super().__init__()
        self._parent = parent

    def is_set(self) -> bool:
        return super().is_set() or self._parent.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        super().wait(timeout)
        return self.is_set()


class TreeLease:
    """Lease of a model's directory, which stays until release() or the end of this object."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._release = weakref.finalize(self, _release_tree, lock)

    def release(self) -> None:
        """Allow the directory to be removed; a second call has no effect."""
        self._release()


def _touch(lock: int) -> None:
    # Pass the time explicitly: the kernel's own time for files is less precise.
    now = time.time_ns()
    os.utime(lock, ns=(now, now))


def _release_tree(lock: int) -> None:
    with suppress(OSError):
        _touch(lock)
    os.close(lock)


class HostCache:
    """A cache in one directory, for several threads. Every method may raise StoreError."""

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        downloader: Downloader,
        disk_free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        """Set the cache's directory; prepare() creates it. limit_bytes 0 allows the whole disk."""
        self._directory = directory
        self._limit = limit_bytes
        self._downloader = downloader
        self._disk_free = disk_free
        self._objects, self._partial = directory / "objects", directory / "partial"
        self._trees, self._locks = directory / "trees", directory / "locks"

    def prepare(self) -> None:
        """Create the directories, accessible to this user alone."""
        try:
            for directory in (self._objects, self._partial, self._trees, self._locks):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                directory.chmod(0o700)
        except OSError as error:
            raise StoreError(
                f"the repository cache {self._directory} cannot be made: {error.strerror}"
                " (--repository-cache-directory)"
            ) from error

    def find(self, tree: str, model: str) -> TreeLease | None:
        """Return the directory of a model in a complete tree; `None` if there is none."""
        path = self._trees / tree / model
        while path.is_dir():
            lock = try_lock(self._locks / tree, shared=True)
            if lock is None:
                # Another process has just built the tree, or looks for trees to remove.
                wait_for_lock(None)
            elif path.is_dir():
                _touch(lock)
                return TreeLease(path, lock)
            else:
                os.close(lock)
        return None

    def build(
        self,
        tree: str,
        model: str,
        files: Mapping[str, SourceFile],
        folders: tuple[str, ...],
        cancelled: threading.Event,
    ) -> TreeLease:
        """Return a lease of a model's directory, built if necessary; may raise CacheFullError."""
        try:
            while (lease := self.find(tree, model)) is None:
                lock = try_lock(self._locks / tree)
                if lock is None:
                    # Another process builds or removes the tree.
                    wait_for_lock(cancelled)
                    continue
                try:
                    if not (self._trees / tree).is_dir():
                        self._assemble(tree, model, files, folders, cancelled)
                finally:
                    os.close(lock)
            return lease
        except StoreError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CacheFullError(
                    f"the repository cache {self._directory} is full: {error.strerror}"
                ) from error
            raise StoreError(
                f"the files of model '{model}' cannot be written to the repository cache:"
                f" {error.strerror}"
            ) from error

    def _assemble(
        self,
        tree: str,
        model: str,
        files: Mapping[str, SourceFile],
        folders: tuple[str, ...],
        cancelled: threading.Event,
    ) -> None:
        by_name = {file.object_name: file for file in files.values()}
        missing = {name: file for name, file in by_name.items() if not self._has(name, file)}
        self.make_space(
            sum(file.stored.size - self._begun(name) for name, file in missing.items()), by_name
        )
        # A killed process may have left a temporary directory.
        temporary = self._trees / f"{tree}{_TEMPORARY}"
        shutil.rmtree(temporary, ignore_errors=True)
        root = temporary / model
        for folder in ("", *folders):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for path in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
        try:
            abort = _Abort(cancelled)
            with ThreadPoolExecutor(_OBJECTS_AT_A_TIME, "store-fetch") as pool:
                places = [
                    pool.submit(self._place, root / path, file, abort)
                    for path, file in files.items()
                ]
                try:
                    for placed in as_completed(places):
                        placed.result()
                except BaseException:
                    # The directory cannot be completed without the failed object.
                    abort.set()
                    raise
            (temporary / _MANIFEST).write_text("\n".join(sorted(by_name)), encoding="ascii")
            temporary.rename(self._trees / tree)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _has(self, name: str, file: SourceFile) -> bool:
        try:
            return (self._objects / name).stat().st_size == file.stored.size
        except FileNotFoundError:
            return False

    def _begun(self, name: str) -> int:
        try:
            return (self._partial / name).stat().st_size
        except FileNotFoundError:
            return 0

    def _place(self, path: Path, file: SourceFile, cancelled: threading.Event) -> None:
        name = file.object_name
        for attempts_left in range(_ATTEMPTS - 1, -1, -1):
            if not self._has(name, file):
                self._fetch(name, file, cancelled)
            try:
                _link(self._objects / name, path)
            except FileNotFoundError:
                if not attempts_left:
                    raise
            else:
                return

    def _fetch(self, name: str, file: SourceFile, cancelled: threading.Event) -> None:
        partial_path = self._partial / name
        with locked(partial_path, cancelled) as lock:
            if self._has(name, file):
                partial_path.unlink()
                return
            with os.fdopen(os.dup(lock), "r+b") as opened:
                try:
                    self._download(file, cast("BinaryIO", opened), cancelled)
                except OSError as error:
                    if not isinstance(error, StoreError):
                        # The disk may be full: truncating the incomplete file frees its space.
                        with suppress(OSError):
                            opened.truncate(0)
                    raise
            os.fchmod(lock, 0o400)
            partial_path.rename(self._objects / name)

    def _download(self, file: SourceFile, opened: BinaryIO, cancelled: threading.Event) -> None:
        try:
            self._downloader.download(file, opened, cancelled)
        except DamagedObjectError:
            # The object was damaged in transit or by a crash of this machine. Start again once.
            self._downloader.download(file, opened, cancelled)

    def make_space(self, needed: int, keep: Mapping[str, object]) -> None:
        """Remove unused files except `keep`; raise CacheFullError if the bytes do not fit."""
        with locked(self._locks / "cache"), ExitStack() as held:
            content = self._content(held)
            excess = content.size + needed - self._limit if self._limit else 0
            free = self._disk_free(self._directory)
            bytes_to_free = max(excess, needed - free)
            if bytes_to_free <= 0:
                return
            eviction = plan_eviction(content, bytes_to_free, {*keep, *map(_partial_name, keep)})
            if eviction is None:
                limit = f"of {self._limit} that it may have" if self._limit else "and has no limit"
                raise CacheFullError(
                    f"{needed} bytes do not fit into the repository cache {self._directory}: it has"
                    f" {content.size} bytes {limit}, the disk has {free} free"
                    " (--repository-cache-bytes)"
                )
            for tree in eviction.trees:
                # Rename first, so that a partly removed directory does not look like a tree.
                removed = self._trees / f"{tree}{_TEMPORARY}"
                (self._trees / tree).rename(removed)
                shutil.rmtree(removed, ignore_errors=True)
                (self._locks / tree).unlink(missing_ok=True)
            for name in eviction.objects:
                self._path_of(name).unlink(missing_ok=True)

    def _path_of(self, name: str) -> Path:
        if name.startswith(_PARTIAL):
            return self._partial / name.removeprefix(_PARTIAL)
        return self._objects / name

    def _content(self, held: ExitStack) -> CacheContent:
        """Return the cache's content. Lock all unused files and trees until `held` is closed."""
        objects = {}
        with os.scandir(self._objects) as entries:
            for entry in entries:
                status = entry.stat()
                objects[entry.name] = CachedObject(status.st_size, status.st_mtime_ns)
        begun = [entry.name for entry in os.scandir(self._partial)]
        for name in begun:
            lock = try_lock(self._partial / name)
            if lock is not None:
                held.callback(os.close, lock)
                status = os.fstat(lock)
                objects[_partial_name(name)] = CachedObject(status.st_size, status.st_mtime_ns)
        trees = {}
        for name in [entry.name for entry in os.scandir(self._trees)]:
            if name.endswith(_TEMPORARY):
                self._remove_abandoned(name)
                continue
            manifest = (self._trees / name / _MANIFEST).read_text(encoding="ascii")
            members = frozenset(manifest.split("\n"))
            lock = try_lock(self._locks / name)
            if lock is not None:
                held.callback(os.close, lock)
            last_used = (self._locks / name).stat().st_mtime_ns
            trees[name] = CachedTree(members, last_used, in_use=lock is None)
        return CacheContent(objects, trees)

    def _remove_abandoned(self, name: str) -> None:
        lock = try_lock(self._locks / name.removesuffix(_TEMPORARY))
        if lock is not None:
            shutil.rmtree(self._trees / name, ignore_errors=True)
            os.close(lock)


def _partial_name(name: str) -> str:
    return _PARTIAL + name


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        shutil.copyfile(source, path)
