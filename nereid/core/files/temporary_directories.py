"""Temporary directories that are removed when no process uses them any more.

Each user holds a shared lock, which the kernel releases even if the process is killed. The last
process to call release() removes the directory. New processes remove the directories of killed
ones.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
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
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
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
    shutil.rmtree(path, ignore_errors=True)
    return True
