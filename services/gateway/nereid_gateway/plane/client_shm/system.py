"""System shared memory: POSIX objects in /dev/shm that a client names by their key.

Clients are not trusted. A key is a name, not a path, and only regular files are opened. Memory is
copied by pread and pwrite instead of being mapped. A client may truncate its object at any moment,
even during the copy. pread then reads fewer bytes, whereas a process that reads a mapping is killed
(SIGBUS).
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
# O_NONBLOCK is set because opening a FIFO or a device must not block.
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CLOSED: Final = -1


# Reference to an object that a process has open: the process id, the object's descriptor in the
# process, and the object's device and inode numbers.
Source = Sequence[int]


class SystemMemory:
    """A `regions.Memory` for a range of an open shared memory object.

    The range begins at offset `base`.
    """

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
        """Copy data to the offset; return `False` if the object has shrunk.

        Raises:
            Internal: the system has no memory left for the object.
        """
        descriptor, position = self._descriptor, self._base + offset
        view = memoryview(data).cast("B")
        # Writing past the end would make the object grow again. If the object shrinks after this
        # check, the write does make it grow, but not beyond the range that the client registered.
        if position + len(view) > os.fstat(descriptor).st_size:
            return False
        while view:
            try:
                count = os.pwrite(descriptor, view, position)
            except OSError as error:
                # Pages are allocated when they are first written to, and the system may have no
                # memory left.
                raise Internal(f"Unable to write to shared memory: {error.strerror}") from error
            view, position = view[count:], position + count
        return True

    def close(self) -> None:
        """Close the object; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)


def open_system(registration: Registration) -> SystemMemory:
    """Open the object that a client registers.

    Raises:
        Internal: there is no such object, or it cannot be opened.
        InvalidArgument: the registered range is empty, unaligned, or not inside the object.
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
            # Triton maps regions and reports the system's error for such a mapping.
            raise InvalidArgument(f"{failed}unable to process address spaceInvalid argument")
        on_failure.pop_all()
        return SystemMemory(descriptor, registration.offset)


def reopen_system(registration: Registration, source: Source) -> SystemMemory:
    """Open the object that another process has open.

    If that process has ended, open it by its key.

    Raises:
        OSError: the object no longer exists, or its key names another object.
        Internal: there is no object with this key.
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
    """Open the object of a key.

    As in shm_open, leading slashes are ignored, and other slashes are refused.
    """
    name = key.lstrip("/")
    try:
        if name in {"", ".", ".."} or "/" in name or len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ValueError(name)
        return os.open(_FOLDER + name, _FLAGS)
    except (OSError, ValueError) as error:
        # A key with a null byte or half a surrogate pair raises ValueError.
        raise Internal(f"Unable to open shared memory region: '{key}'") from error
