"""Unpacks archives of environments. Each member is checked here, and no link is followed.

The filters of tarfile differ between releases of Python, and some of them can be evaded.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import tarfile
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from pathlib import Path

_OPENERS: Final[dict[bytes, Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_MAX_MEMBERS: Final = 1 << 18
_MAX_BYTES: Final = 64 << 30
# tarfile reads contents in smaller pieces, and a header's names at once.
_MAX_READ_BYTES: Final = 1 << 20
# Free space that an archive must leave to others, as a share.
_SPARED: Final = 0.1
_DIRECTORY: Final = "directory"
_FILE: Final = "file"
_LINK: Final = "link"


class UnpackError(Exception):
    """An archive that cannot be unpacked, or must not be."""


def is_archive(path: Path) -> bool:
    """Return whether a file is a tar archive, which may be compressed."""
    try:
        with _opened(path) as file, tarfile.TarFile(fileobj=file):
            return True
    except _UNREADABLE:
        return False


def unpack(path: Path, directory: Path, max_members: int = _MAX_MEMBERS) -> None:
    """Unpack an archive into a directory, which exists and is empty.

    Raises UnpackError. What was unpacked until then remains.
    """
    unpacking = _Unpacking(directory, max_members)
    try:
        with _opened(path) as file, tarfile.TarFile(fileobj=file) as archive:
            while (member := archive.next()) is not None:
                unpacking.add(archive, member)
                # The archive would keep all of them. typeshed does not know the list.
                archive.members.clear()  # type: ignore[attr-defined]
    except _UNREADABLE as error:
        raise UnpackError(str(error) or type(error).__name__) from error


class _BoundedReads(io.RawIOBase):
    """File that refuses to read much at once, which only headers of an absurd size ask for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise UnpackError(f"a header of {size} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def close(self) -> None:
        self._file.close()
        super().close()


_UNREADABLE: Final = (
    *(tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, UnpackError),
    # Numbers and chains of headers that no archive has.
    *(ValueError, OverflowError, RecursionError),
)


def _opened(path: Path) -> _BoundedReads:
    with path.open("rb") as file:
        beginning = file.read(max(map(len, _OPENERS)))
    for magic, opener in _OPENERS.items():
        if beginning.startswith(magic):
            return _BoundedReads(opener(path))
    return _BoundedReads(path.open("rb"))


class _Unpacking:
    """Members of one archive that have been unpacked, and the space that is left."""

    def __init__(self, directory: Path, max_members: int) -> None:
        self._directory = directory
        # Kind of each member by its parts.
        self._kinds: dict[tuple[str, ...], str] = {(): _DIRECTORY}
        self._left_members = max_members
        free_bytes = int(shutil.disk_usage(directory).free * (1 - _SPARED))
        self._left_bytes = min(_MAX_BYTES, free_bytes)

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Check and write a member. Raises UnpackError, OSError or what tarfile raises."""
        self._left_members -= 1
        if self._left_members < 0:
            raise UnpackError("it has too many members")
        parts = _parts(member.name, f"member {member.name!r}")
        # Appended archives repeat their directories.
        if member.isdir() and self._kinds.get(parts) == _DIRECTORY:
            return
        path = self._directory.joinpath(*parts)
        if member.isdir():
            self._add_kind(parts, _DIRECTORY)
            path.mkdir()
        elif member.issym():
            _check_target(parts, member)
            self._add_kind(parts, _LINK)
            path.symlink_to(member.linkname)
        elif member.islnk():
            target = _parts(member.linkname, f"target of link {member.name!r}")
            if self._kinds.get(target) != _FILE:
                raise UnpackError(f"link {member.name!r} has no file before it as its target")
            self._add_kind(parts, _FILE)
            os.link(self._directory.joinpath(*target), path, follow_symlinks=False)
        elif member.isreg():
            self._left_bytes -= member.size
            if member.size < 0 or self._left_bytes < 0:
                raise UnpackError("it needs more space than there is")
            self._add_kind(parts, _FILE)
            _write_file(archive, member, path)
        else:
            raise UnpackError(f"member {member.name!r} is neither a file, a directory nor a link")

    def _add_kind(self, parts: tuple[str, ...], kind: str) -> None:
        """Record a member, and make the directories above it. Raises UnpackError."""
        for length in range(1, len(parts)):
            above = self._kinds.get(parts[:length])
            if above is None:
                self._kinds[parts[:length]] = _DIRECTORY
                self._directory.joinpath(*parts[:length]).mkdir()
            elif above != _DIRECTORY:
                raise UnpackError(f"member {'/'.join(parts)!r} is below a {above}")
        if parts in self._kinds:
            raise UnpackError(f"member {'/'.join(parts)!r} comes twice")
        self._kinds[parts] = kind


def _parts(name: str, what: str) -> tuple[str, ...]:
    """Return the parts of a path inside the archive. Raises UnpackError if it leads out of it."""
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    if name.startswith("/") or ".." in parts or "\0" in name or not name:
        raise UnpackError(f"{what} leads out of the archive")
    return parts


def _check_target(parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
    """Check that a relative link stays inside.

    An absolute one names the machine's interpreter in a virtual environment. It is never followed
    while the archive is unpacked.
    """
    if member.linkname.startswith("/"):
        return
    depth = len(parts) - 1
    for part in member.linkname.split("/"):
        depth += -1 if part == ".." else part not in {"", "."}
        if depth < 0:
            raise UnpackError(f"link {member.name!r} leads out of the archive")


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = archive.extractfile(member)
    if content is None:
        raise UnpackError(f"member {member.name!r} has no content")
    # O_EXCL follows no link.
    mode = 0o700 if member.mode & 0o100 else 0o600
    with (
        content,
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
    ):
        shutil.copyfileobj(content, file)
        if file.tell() != member.size:
            raise UnpackError(f"member {member.name!r} is cut off")
    # Compiled modules are current by the time of their sources.
    os.utime(path, (member.mtime, member.mtime))
