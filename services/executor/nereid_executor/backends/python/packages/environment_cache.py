"""A folder of environments that all executors of a host share.

environments/ holds one folder for each environment, complete once its marker is written; locks/
holds a lock file for each, which users share and a builder has for itself. A process may be killed
at any time: what it has left without a marker is removed by the next builder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.object_store.file_locks import try_lock, wait_for_lock
from nereid_executor.backends.python.packages.eviction import KeptEnvironment, select_excess

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from nereid_executor.backends.python.packages.eviction import KeptLimits

# The file is in the environment's folder, and holds its size in bytes.
_MARKER: Final = "nereid-complete"
_SCRATCH: Final = ".scratch-"


class EnvironmentLease:
    """Use of an environment, which is not removed until release() or the end of this object."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._release = weakref.finalize(self, _release, lock)

    def release(self) -> None:
        """Allow the environment to be removed; a second call has no effect."""
        self._release()


class EnvironmentCache:
    """The environments in one directory, for several threads. Every method may raise OSError."""

    def __init__(self, directory: Path, limits: KeptLimits) -> None:
        """Set the directory, which is created by the first build."""
        self._limits = limits
        self._directory = directory
        self._environments, self._locks = directory / "environments", directory / "locks"

    def lease(
        self,
        name: str,
        build: Callable[[Path, Path, int], None],
        cancelled: threading.Event,
        on_wait: Callable[[], None],
    ) -> EnvironmentLease:
        """Return a lease of an environment, built first if there is none.

        build gets the environment's folder, an empty folder for its own files, and a descriptor of
        the lock, which processes that write to the environment have to inherit. on_wait is called
        while another process builds. Raises FetchCancelledError if cancelled first.
        """
        self._prepare()
        has_built = False
        while (lease := self._find(name)) is None:
            lock = try_lock(self._locks / name)
            if lock is None:
                on_wait()
                wait_for_lock(cancelled)
                continue
            try:
                # Another process may have completed it before this one had the lock.
                has_built = not self._is_complete(name)
                if has_built:
                    self._build(name, build, lock)
                _touch(lock)
            finally:
                os.close(lock)
        if has_built:
            self.remove_excess()
        return lease

    def remove_excess(self) -> None:
        """Remove the least recently used environments beyond the limits, but none in use."""
        held: dict[str, int] = {}
        try:
            kept = dict(self._kept(held))
            for name in select_excess(kept, self._limits):
                self._remove(name)
                (self._locks / name).unlink(missing_ok=True)
        finally:
            for lock in held.values():
                os.close(lock)

    def _prepare(self) -> None:
        for directory in (self._environments, self._locks):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = directory.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                # Code from here is run.
                raise PermissionError(f"{directory} belongs to, or can be written by, other users")

    def _is_complete(self, name: str) -> bool:
        return (self._environments / name / _MARKER).is_file()

    def _find(self, name: str) -> EnvironmentLease | None:
        while self._is_complete(name):
            lock = try_lock(self._locks / name, shared=True)
            if lock is None:
                # Another process has just built it, or looks for environments to remove.
                wait_for_lock(None)
            elif self._is_complete(name):
                _touch(lock)
                return EnvironmentLease(self._environments / name, lock)
            else:
                os.close(lock)
        return None

    def _build(self, name: str, build: Callable[[Path, Path, int], None], lock: int) -> None:
        self._remove_scratch(name)
        self._remove(name)
        target = self._environments / name
        scratch = Path(tempfile.mkdtemp(prefix=f"{name}{_SCRATCH}", dir=self._directory))
        try:
            build(target, scratch, lock)
            partial = target / f"{_MARKER}.partial"
            partial.write_text(str(_size_of(target)), encoding="ascii")
            partial.rename(target / _MARKER)
        except BaseException:
            self._remove(name)
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _remove(self, name: str) -> None:
        # The marker is removed first, so that a partly removed environment is never complete.
        (self._environments / name / _MARKER).unlink(missing_ok=True)
        shutil.rmtree(self._environments / name, ignore_errors=True)

    def _remove_scratch(self, name: str) -> None:
        for scratch in self._directory.glob(f"{name}{_SCRATCH}*"):
            shutil.rmtree(scratch, ignore_errors=True)

    def _kept(self, held: dict[str, int]) -> Iterator[tuple[str, KeptEnvironment]]:
        """Yield all environments; lock the unused ones, and remove what killed builds have left."""
        for name in [path.name for path in self._environments.iterdir()]:
            lock = try_lock(self._locks / name)
            if lock is not None:
                held[name] = lock
            size = 0
            with suppress(OSError, ValueError):
                size = int((self._environments / name / _MARKER).read_text(encoding="ascii"))
            if lock is not None and not size:
                self._remove_scratch(name)
                self._remove(name)
                (self._locks / name).unlink(missing_ok=True)
                continue
            with suppress(FileNotFoundError):
                last_used = (self._locks / name).stat().st_mtime_ns
                yield name, KeptEnvironment(size, last_used, in_use=lock is None)


def _size_of(directory: Path) -> int:
    size = 0
    for root, _, files in os.walk(directory):
        size += sum((Path(root) / file).lstat().st_size for file in files)
    return size


def _touch(lock: int) -> None:
    # Pass the time explicitly: the kernel's own time for files is less precise.
    now = time.time_ns()
    os.utime(lock, ns=(now, now))


def _release(lock: int) -> None:
    with suppress(OSError):
        _touch(lock)
    os.close(lock)
