"""System shared memory: POSIX objects in /dev/shm that a client names by their key.

Clients are not trusted. A key is a name, not a path, and only regular files are opened. Memory is
copied by pread and pwrite, because a client may truncate its object at any moment. pread then reads
less. Reading a mapping would kill the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Internal, InvalidArgument

if TYPE_CHECKING:
    from nereid_gateway.plane.client_shm.regions import Registration

_FOLDER: Final = "/dev/shm/"  # noqa: S108 - not temporary: where POSIX shared memory is
_MAX_NAME_BYTES: Final = 255
# O_NONBLOCK: opening a FIFO or a device must not block.
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CLOSED: Final = -1


# Process id, descriptor in that process, and device and inode numbers of the object.
Source = Sequence[int]


class SystemMemory:
    """A `regions.Memory` for a range of an open object. The range begins at offset `base`."""

    def __init__(self, descriptor: int, base: int) -> None:
        self._descriptor = descriptor
        self._base = base

    def source(self) -> Source:
        """Return a reference by which another process of this host can open the same object."""
        return (os.getpid(), self._descriptor, *_identity(self._descriptor))

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return a copy of a range, which is shorter if the object has shrunk."""
        descriptor, position = self._descriptor, self._base + offset
        data = os.pread(descriptor, size_bytes, position)
        while 0 < len(data) < size_bytes:
            # One call reads at most 2 GiB.
            more = os.pread(descriptor, size_bytes - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, offset: int, data: Any) -> bool:
        """Copy data to the offset. Return False if the object has shrunk.

        Raises Internal if the system has no memory left for the object.
        """
        descriptor, position = self._descriptor, self._base + offset
        view = memoryview(data).cast("B")
        # A write past the end would make the object grow. The object may still shrink after this
        # check, and then grows at most to the registered range.
        if position + len(view) > os.fstat(descriptor).st_size:
            return False
        while view:
            try:
                count = os.pwrite(descriptor, view, position)
            except OSError as error:
                # Pages are allocated at the first write, and the system may have no memory left.
                raise Internal(f"Unable to write to shared memory: {error.strerror}") from error
            view, position = view[count:], position + count
        return True

    def close(self) -> None:
        """Close the object. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)


def open_system(registration: Registration) -> SystemMemory:
    """Open the object that a client registers.

    Raises Internal if it cannot be opened. Raises InvalidArgument if the range is empty, unaligned
    or not inside the object.
    """
    with contextlib.ExitStack() as on_failure:
        descriptor = _open(registration.key)
        on_failure.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 0
        failed = f"failed to register shared memory region '{registration.name}': "
        if registration.offset + registration.size_bytes > size_bytes:
            raise InvalidArgument(f"{failed}invalid args")
        if not registration.size_bytes or registration.offset % mmap.PAGESIZE:
            # Triton maps regions, and reports the system's error for such a mapping.
            raise InvalidArgument(f"{failed}unable to process address spaceInvalid argument")
        on_failure.pop_all()
        return SystemMemory(descriptor, registration.offset)


def reopen_system(registration: Registration, source: Source) -> SystemMemory:
    """Open the object that another process has open. If that process has ended, use the key.

    Raises OSError if the key names another object by now, and Internal if it names none.
    """
    process, descriptor, *identity = source
    try:
        reopened = os.open(f"/proc/{process}/fd/{descriptor}", _FLAGS & ~os.O_NOFOLLOW)
    except OSError:
        reopened = _open(registration.key)
    if _identity(reopened) != identity:
        os.close(reopened)
        reopened = _open(registration.key)
    if _identity(reopened) != identity:
        os.close(reopened)
        raise OSError(errno.ESTALE, f"'{registration.key}' is another object by now")
    return SystemMemory(reopened, registration.offset)


def _identity(descriptor: int) -> list[int]:
    status = os.fstat(descriptor)
    return [status.st_dev, status.st_ino]


def _open(key: str) -> int:
    """Open a key's object. Like shm_open, ignore leading slashes and refuse other slashes."""
    name = key.lstrip("/")
    try:
        if name in {"", ".", ".."} or "/" in name or len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ValueError(name)
        return os.open(_FOLDER + name, _FLAGS)
    except (OSError, ValueError) as error:
        # A key with a null byte or half a surrogate pair raises ValueError.
        raise Internal(f"Unable to open shared memory region: '{key}'") from error
