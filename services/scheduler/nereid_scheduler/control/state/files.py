"""Keeps records in a directory that only this user may enter.

    lock                    locked exclusively by the process that writes
    records/NAME            a record; NAME.new while it is written, NAME.damaged if it was set aside
    files/NAME/DIGEST       the files that the record names

A file is written under another name, synchronised and renamed. The files that a record names are
written before the record; files that no record names any more are deleted after the record was
written. If the process or the machine ends in between, the record and its files are therefore
either all old or all new. All calls of this module block: FileStore makes them in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.core.files.regular_files import read_up_to
from nereid_scheduler.control.state.format.records import MAX_RECORD_BYTES, head_of
from nereid_scheduler.control.state.store import StateConflict, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

_PRIVATE: Final = 0o700
_OF_OTHERS: Final = 0o077
_NEW: Final = ".new"
_DAMAGED: Final = ".damaged"


def directory_error(path: str) -> str:
    """Return why a directory must not hold state; empty if it may, or if it does not exist."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"'{path}' cannot be used: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"'{path}' is no directory"
    if status.st_uid != os.geteuid():
        return f"'{path}' belongs to another user, who could have any model loaded"
    if status.st_mode & _OF_OTHERS:
        return f"'{path}' is open to other users: chmod 700 it, or name a directory inside it"
    return ""


class StateFiles:
    """One directory of records. Each call may raise StateError."""

    def __init__(self, path: str, on_step: Callable[[str], None] = lambda _: None) -> None:
        self._path = Path(path)
        self._records = self._path / "records"
        self._files = self._path / "files"
        self._on_step = on_step

    def read_all(self) -> dict[str, bytes]:
        """Return all records, by name."""
        with _os_errors("read"):
            self._require_private()
            try:
                names = [place.name for place in self._records.iterdir()]
            except FileNotFoundError:
                return {}
            return {
                name: record
                for name in names
                if "." not in name and (record := _read(self._records / name))
            }

    def read(self, name: str) -> bytes:
        """Return one record; empty if there is none."""
        with _os_errors("read"):
            self._require_private()
            return _read(self._records / name)

    def read_files(self, name: str, digests: Collection[str]) -> dict[str, bytes]:
        """Return files of a record by digest. Files that are missing are left out."""
        contents = {}
        with _os_errors("read"):
            self._require_private()
            for digest in digests:
                with contextlib.suppress(FileNotFoundError):
                    contents[digest] = (self._files / name / digest).read_bytes()
        return contents

    def write(self, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]) -> None:
        """Replace a record and all its files, if the record has the head `expected`."""
        with _os_errors("written"), self._locked():
            self._require(name, expected)
            folder = self._files / name
            if files:
                folder.mkdir(mode=_PRIVATE, exist_ok=True)
                for digest, content in files.items():
                    self._write(folder / digest, content)
                self._sync(folder)
                self._sync(self._files)
            self._write(self._records / name, record)
            self._sync(self._records)
            self._drop_files(name, files)

    def delete(self, name: str, expected: bytes) -> None:
        """Delete a record and its files, if the record has the head `expected`."""
        with _os_errors("written"), self._locked():
            self._require(name, expected)
            self._on_step("unlink record")
            (self._records / name).unlink(missing_ok=True)
            self._sync(self._records)
            self._drop_files(name, ())

    def set_aside(self, name: str) -> str:
        """Rename a damaged record; return its new path."""
        with _os_errors("written"), self._locked():
            aside = self._records / f"{name}{_DAMAGED}"
            (self._records / name).rename(aside)
            return str(aside)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        for directory in (self._path, self._records, self._files):
            directory.mkdir(mode=_PRIVATE, exist_ok=True)
        self._require_private()
        lock = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _require_private(self) -> None:
        """Raise StateError if another user made the directory since the start, or can enter it."""
        error = directory_error(str(self._path))
        if error:
            raise StateError(error)

    def _require(self, name: str, expected: bytes) -> None:
        if head_of(_read(self._records / name)) != expected:
            raise StateConflict("another scheduler has written it meanwhile")

    def _write(self, path: Path, content: bytes) -> None:
        new = path.with_name(path.name + _NEW)
        self._on_step(f"write {path.parent.name}")
        new.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, 0o600), "wb", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
            self._on_step("fsync")
            os.fsync(file.fileno())
        self._on_step("rename")
        new.rename(path)

    def _sync(self, folder: Path) -> None:
        """Make renames and deletions in a folder survive a power failure."""
        self._on_step("fsync folder")
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _drop_files(self, name: str, kept: Collection[str]) -> None:
        self._on_step("drop files")
        folder = self._files / name
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
            return
        for path in list(folder.iterdir()):
            if path.name not in kept:
                path.unlink()


def _read(path: Path) -> bytes:
    """Return a record, empty if there is none. Truncate one that is too long: it is damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StateError(f"'{path}' is no file")
        return read_up_to(file, MAX_RECORD_BYTES)


@contextlib.contextmanager
def _os_errors(done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(f"the state cannot be {done}: {error}") from error
