"""Reader's side of shared memory: it maps segments of other processes into this process.

A reference may be stale or forged, so its segment is checked before it is mapped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from nereid.shm.segments import SIZE_SEALS

if TYPE_CHECKING:
    from nereid.shm.reference import SharedMemory

# A writer uses the same few segments again and again.
_MAX_MAPPINGS: Final = 64
# F_GET_SEALS (linux/fcntl.h).
_GET_SEALS: Final = 1034


class SegmentLostError(Exception):
    """Raised if the memory that a reference names does not exist."""


class SegmentMappings:
    """Segments that this process has mapped. Several threads may use the object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, memoryview] = OrderedDict()

    def view(self, reference: SharedMemory) -> memoryview:
        """Return the named bytes without a copy, or raise SegmentLostError.

        The bytes stay valid for as long as the view exists.
        """
        return part(self.segment(reference.segment_name), reference)

    def segment(self, segment_name: str) -> memoryview:
        """Return the bytes of a whole segment; raise SegmentLostError if it is gone."""
        with self._lock:
            view = self._open.get(segment_name)
            if view is None:
                view = self._open[segment_name] = _map(segment_name)
                if len(self._open) > _MAX_MAPPINGS:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(segment_name)
        return view

    def sweep(self) -> None:
        """Close the mappings of segments whose owner has closed them or has ended."""
        with self._lock:
            for name in [name for name in self._open if not exists(name)]:
                del self._open[name]


def read(reference: SharedMemory) -> bytes:
    """Return a copy of the bytes that a reference names, or raise SegmentLostError."""
    return bytes(view(reference))


def view(reference: SharedMemory) -> memoryview:
    """Return the named bytes without a copy, and keep no mapping; may raise SegmentLostError."""
    return part(_map(reference.segment_name), reference)


def part(view: memoryview, reference: SharedMemory) -> memoryview:
    """Return the part of a whole segment that a reference names, or raise SegmentLostError."""
    end = reference.offset + reference.size_bytes
    if not 0 <= reference.offset <= end <= len(view):
        raise SegmentLostError(f"{reference} lies outside its segment of {len(view)} bytes")
    return view[reference.offset : end]


def exists(segment_name: str) -> bool:
    """Return whether the process that owns a segment still has the segment open."""
    path, inode = _path_and_inode(segment_name)
    try:
        return os.stat(path).st_ino == inode  # noqa: PTH116 (no object for a path as text)
    except OSError:
        return False


def _path_and_inode(segment_name: str) -> tuple[str, int]:
    try:
        process, descriptor, inode = map(int, segment_name.split("."))
    except ValueError as error:
        raise SegmentLostError(f"{segment_name!r} names no segment") from error
    return f"/proc/{process}/fd/{descriptor}", inode


def _map(segment_name: str) -> memoryview:
    path, inode = _path_and_inode(segment_name)
    try:
        # The owner may have closed the segment and reused its descriptor. Opening a pipe could
        # block, and opening a terminal could change the controlling terminal.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise SegmentLostError(
            f"segment {segment_name} cannot be opened: {error.strerror}"
        ) from error
    try:
        status = os.fstat(descriptor)
        # Only memory files have seals. An unsealed file could shrink while it is read.
        sealed = fcntl.fcntl(descriptor, _GET_SEALS) & SIZE_SEALS == SIZE_SEALS
        if status.st_ino != inode or not sealed:
            raise SegmentLostError(f"segment {segment_name} is gone")
        return memoryview(mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ))
    except (OSError, ValueError) as error:
        raise SegmentLostError(f"segment {segment_name} cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)
