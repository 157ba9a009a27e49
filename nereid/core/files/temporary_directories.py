"""Temporary directories that are removed when no process uses them any more.

Each user holds a shared lock, which the kernel releases even if the process is killed. The last
process to call release() removes the directory. New processes remove the directories of killed
ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger(__name__)

# One prefix for each purpose. SERVE is short, because paths of sockets contain it.
SERVE: Final = "nereid."
OVERRIDE: Final = "nereid.model-"
PYTHON_ENV: Final = "nereid.env-"
APP: Final = "nereid.app-"
SANDBOX: Final = "nereid.box-"
_PREFIXES: Final = (SERVE, OVERRIDE, PYTHON_ENV, APP, SANDBOX)

# Suffix and mode of mkdtemp().
_RANDOM: Final = re.compile(r"[a-z0-9_]{8}")
_MODE: Final = 0o700
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Lowest inherited descriptor: libraries do not open descriptors this high.
_HIGH: Final = 200


class TemporaryDirectory:
    """Directory that exists until the last process that uses it has called release() or ended."""

    def __init__(self, path: Path) -> None:
        """Use a directory that make() has made, here or in another process.

        Raises OSError if make() did not make it, or it is being removed.
        """
        self.path = path
        self._lock = _open(path)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._lock), path.lstat()):
                raise FileNotFoundError(f"{path} was removed")
        except BaseException:
            os.close(self._lock)
            raise

    @classmethod
    def make(cls, prefix: str) -> Self:
        """Make a new directory, which only this user may enter."""
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix))
            try:
                return cls(path)
            except (BlockingIOError, FileNotFoundError):
                # Another process considered the unlocked directory abandoned.
                continue

    def share(self) -> int:
        """Return a descriptor; the directory exists while any process holds the descriptor."""
        return fcntl.fcntl(self._lock, fcntl.F_DUPFD_CLOEXEC, _HIGH)

    def release(self) -> None:
        """Stop using the directory; call this once."""
        try:
            _remove_unused(self.path, self._lock)
        finally:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def is_temporary(path: Path, prefix: str) -> bool:
    """Return whether make() may have made a directory at this path, with this prefix."""
    name = path.name
    return (
        name.startswith(prefix)
        and _RANDOM.fullmatch(name, len(prefix)) is not None
        and path.parent == Path(tempfile.gettempdir())
    )


def remove_abandoned() -> None:
    """Remove this user's temporary directories that no process uses."""
    for path in Path(tempfile.gettempdir()).glob(f"{SERVE}*"):
        if not any(is_temporary(path, prefix) for prefix in _PREFIXES):
            continue
        try:
            lock = _open(path)
        except OSError:
            continue
        try:
            if _remove_unused(path, lock):
                _log.info("removed a temporary directory of an ended process: %s", path)
        finally:
            os.close(lock)


def begin_removal_of_abandoned() -> None:
    """Run remove_abandoned() in a thread that nobody waits for, because it may take long."""
    Thread(target=remove_abandoned, name="removal", daemon=True).start()


def _open(path: Path) -> int:
    """Return a directory's descriptor; raise OSError if it is not this user's."""
    lock = os.open(path, _DIRECTORY)
    status = os.fstat(lock)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == _MODE:
        return lock
    os.close(lock)
    raise PermissionError(f"{path} is no temporary directory of this user")


def _remove_unused(path: Path, lock: int) -> bool:
    """Remove a directory unless another process uses it; return whether it was removed.

    The shared lock is given up first, so the last process can get the exclusive lock.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), path.lstat()):
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError):
        _remove_tree(path, lock)
    return True


def _remove_tree(path: Path, root: int) -> None:
    """Remove a directory, with whatever code of a model has left in it; root: its descriptor.

    shutil.rmtree() takes a call and a descriptor for each level, and rights that it may not have.
    """
    os.fchmod(root, _MODE)
    prefix = secrets.token_hex(8)
    moved = _empty(root, root, prefix, 0)
    removed = 0
    while removed < moved:
        name = f"{prefix}{removed}"
        removed += 1
        directory = os.open(name, _DIRECTORY, dir_fd=root)
        try:
            moved = _empty(directory, root, prefix, moved)
        finally:
            os.close(directory)
        # A file that cannot be deleted does not keep the others.
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=root)
    path.rmdir()


def _empty(directory: int, root: int, prefix: str, moved: int) -> int:
    """Delete a directory's files, and move its directories to root, by the numbers from moved on.

    Returns the next number.
    """
    with os.scandir(directory) as entries:
        found = [*entries]
    for entry in found:
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                _allow_all(entry.name, directory)
                os.rename(entry.name, f"{prefix}{moved}", src_dir_fd=directory, dst_dir_fd=root)
                moved += 1
            else:
                os.unlink(entry.name, dir_fd=directory)
    return moved


def _allow_all(name: str, directory: int) -> None:
    """Give this user all rights to a directory, and not to what a link refers to."""
    found = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=directory)
    try:
        Path(f"/proc/self/fd/{found}").chmod(_MODE)
    finally:
        os.close(found)
