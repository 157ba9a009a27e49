"""System shared memory: POSIX objects of /dev/shm that a client names by their key.

Clients are not trusted. A key is a name, not a path, and only regular files are opened. Memory is
copied by pread and pwrite instead of being mapped: a client may truncate its object at any moment,
even while it is copied, which is a short read here but kills a process that reads a mapping
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
# O_NONBLOCK: opening a FIFO or a device must not block.
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CLOSED: Final = -1


# An open object: its process, its descriptor there, and its device and inode numbers.
Source = Sequence[int]


class SystemMemory:
    """A range of an open shared memory object; base is where it begins there."""

    def __init__(self, descriptor: int, base: int) -> None:
        self._descriptor = descriptor
        self._base = base

    def source(self) -> Source:
        """By which another process of this host opens the same object."""
        return (os.getpid(), self._descriptor, *_identity(self._descriptor))

    def read(self, offset: int, size_bytes: int) -> bytes:
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
        descriptor, position = self._descriptor, self._base + offset
        view = memoryview(data).cast("B")
        # Writing past the end would let the object grow again. One that shrinks after this check
        # does grow, but not past what its client had registered.
        if position + len(view) > os.fstat(descriptor).st_size:
            return False
        while view:
            try:
                count = os.pwrite(descriptor, view, position)
            except OSError as error:
                # Pages are allocated when they are first written to; there may be none left.
                raise Internal(f"Unable to write to shared memory: {error.strerror}") from error
            view, position = view[count:], position + count
        return True

    def close(self) -> None:
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
        found = os.fstat(descriptor)
        size_bytes = found.st_size if stat.S_ISREG(found.st_mode) else 0
        failed = f"failed to register shared memory region '{registration.name}': "
        if registration.offset + registration.size_bytes > size_bytes:
            raise InvalidArgument(f"{failed}invalid args")
        if not registration.size_bytes or registration.offset % mmap.PAGESIZE:
            # Triton maps regions and reports the system's error for such a mapping.
            raise InvalidArgument(f"{failed}unable to process address spaceInvalid argument")
        on_failure.pop_all()
        return SystemMemory(descriptor, registration.offset)


def reopen_system(registration: Registration, source: Source) -> SystemMemory:
    """Open the object that another process has opened, or had: by its key if that process ended.

    Raises:
        OSError: it is not there any more, or there is another one in its place.
        Internal: there is none of this key.
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
    found = os.fstat(descriptor)
    return [found.st_dev, found.st_ino]


def _open(key: str) -> int:
    """As shm_open: leading slashes are ignored, others are refused."""
    name = key.lstrip("/")
    try:
        if name in {"", ".", ".."} or "/" in name or len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ValueError(name)
        return os.open(_FOLDER + name, _FLAGS)
    except (OSError, ValueError) as error:
        # A null byte or half a surrogate pair is a ValueError as well.
        raise Internal(f"Unable to open shared memory region: '{key}'") from error
