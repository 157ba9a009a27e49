"""Temporary directories that are removed with the last process that uses them, even a killed one.

Who uses one holds a shared lock on it, which the kernel releases with its processes; the last one
to release it removes it. What killed processes have left, the next ones remove at their start.
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

# Prefixes of their names, by what they are for.
# The first is short: paths of sockets begin with it.
SERVE: Final = "nereid."
OVERRIDE: Final = "nereid.model-"
PYTHON_ENV: Final = "nereid.env-"
_PREFIXES: Final = (SERVE, OVERRIDE, PYTHON_ENV)

# What mkdtemp makes of a prefix, and whom it lets in.
_RANDOM: Final = re.compile(r"[a-z0-9_]{8}")
_MODE: Final = 0o700
# Of descriptors that children inherit: no library has opened those.
_HIGH: Final = 200


class TemporaryDirectory:
    """One that is there until release(), and for as long as others use it."""

    def __init__(self, path: Path) -> None:
        """path: of a directory that make() has made, in this process or another.

        Raises:
            OSError: it is none, or it is being removed.
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
        """A new one, which only this user may enter."""
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix))
            try:
                return cls(path)
            except (BlockingIOError, FileNotFoundError):
                # Another process has taken it for an abandoned one.
                continue

    def share(self) -> int:
        """A descriptor that keeps the directory for as long as a process has it."""
        return fcntl.fcntl(self._lock, fcntl.F_DUPFD_CLOEXEC, _HIGH)

    def release(self) -> None:
        """Not needed any more here. To be called once."""
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
    """Whether a path may be one that make() has given a directory with this prefix."""
    name = path.name
    return (
        name.startswith(prefix)
        and _RANDOM.fullmatch(name, len(prefix)) is not None
        and path.parent == Path(tempfile.gettempdir())
    )


def remove_abandoned() -> None:
    """Remove this user's directories that no process uses."""
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
    """As remove_abandoned(), in a thread that nobody waits for: they may be large."""
    Thread(target=remove_abandoned, name="removal", daemon=True).start()


def _open(path: Path) -> int:
    """A descriptor of a directory of this user's. Raises OSError: it is none."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(lock)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == _MODE:
        return lock
    os.close(lock)
    raise PermissionError(f"{path} is no temporary directory of this user")


def _remove_unused(path: Path, lock: int) -> bool:
    """Remove a directory unless another process uses it; whether it was removed.

    Of several that do this at once, the last one gets the lock: each loses its own first.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), path.lstat()):
            return False
    except OSError:
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True
