"""Memory that processes of one host share: segments on the writer's side, mappings on the reader's.

A segment is an anonymous memory file. The kernel frees it with its last holder, so there is nothing
to sweep after a process that was killed, and it has no name that another user could open: a process
of the same user reaches it through /proc/<pid>/fd. A reference (nereid.core.messages.SharedMemory)
names the process, the descriptor and the file's own number; a descriptor that has become something
else in the meantime is noticed by that number. Segments can neither shrink nor grow, so that a
reader's mapping is good for as long as it is held, whatever becomes of the writer.

A segment is written by one process, and read by others until its owner hears that they are done:
then it is free for the next tensor. Where that cannot be known (a cancelled request, a broken link)
it is discarded instead, which a reader that has it open never notices. Knows no service.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nereid.config.flags import flag, integer, seconds
from nereid.core.messages import SharedMemory

# From this many bytes on a hop through a segment costs less than inline; docs/decisions.md has the
# measurement.
THRESHOLD_BYTES: Final = 1 << 16
# Tensors in a segment begin at multiples of this.
ALIGNMENT: Final = 64
# Segments that nobody uses go back to the system after this long, or a little later.
IDLE_S: Final = 10.0
_LEAST_PAUSE_S: Final = 0.1
# A segment is taken again for what fills at least this part of it.
_LEAST_FILL: Final = 2
_PAGE: Final = 4096
# Kept open by a reader: what the same writer will most likely use again.
_MOST_MAPPINGS: Final = 64
# Python 3.11 has no names for these (linux/fcntl.h).
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SHRINK, _GROW, _FUTURE_WRITE = 0x2, 0x4, 0x10
_SIZE_SEALS: Final = _SHRINK | _GROW


@dataclass(frozen=True, kw_only=True)
class SegmentPoolSettings:
    """The flags of a service that may share memory with others."""

    shm_limit_bytes: int = flag(
        4 << 30,
        "how much memory large tensors may take on their way to other processes of this host;"
        " past it they are sent inline, and 0 sends all of them so",
        integer(0),
        aliases=("--slab-limit-bytes",),
    )


@dataclass(frozen=True, kw_only=True)
class SegmentSettings(SegmentPoolSettings):
    """The flags of a service that has segments of its own."""

    shm_idle_secs: float = flag(
        IDLE_S,
        "how long memory that large tensors have left is kept for the next ones",
        seconds,
        aliases=("--slab-idle-secs",),
    )


class LostError(Exception):
    """What a reference names is not there, or is not what it names."""


def memory_domain(limit_bytes: int) -> str:
    """Equal in two processes that can open each other's segments; empty in one that shares none.

    That is: one kernel, one view of process ids, one user with the same rights.
    """
    if not limit_bytes or not hasattr(os, "memfd_create"):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "user")]
        status = Path("/proc/self/status").read_text()
    except OSError:
        return ""
    rights = next((line[7:].strip() for line in status.splitlines() if line[:7] == "CapPrm:"), "")
    return "/".join(map(str, (boot, *spaces, os.getuid(), os.getgid(), rights)))


def tidying_pause_s(idle_s: float) -> float:
    """How long to wait between looks at what nobody uses."""
    return max(idle_s / 2, _LEAST_PAUSE_S)


def aligned(size_bytes: int) -> int:
    """The next place in a segment where a tensor may begin."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def owner_of(segment_name: str) -> str:
    """The process id in a segment's name."""
    return segment_name.partition(".")[0]


class Segment:
    """A piece of memory of this process that others can map."""

    __slots__ = ("descriptor", "freed_at", "name", "size_bytes", "user", "view")

    def __init__(self, size_bytes: int, *, writable: bool = False) -> None:
        """Raises OSError when the system has no more memory or descriptors.

        writable: by other processes of this user as well.
        """
        self.descriptor = os.memfd_create("nereid-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(self.descriptor, stat.S_IRUSR | stat.S_IWUSR)
            os.ftruncate(self.descriptor, size_bytes)
            fcntl.fcntl(self.descriptor, _ADD_SEALS, _SIZE_SEALS)
            self.view = memoryview(mmap.mmap(self.descriptor, size_bytes))
            if not writable:
                with contextlib.suppress(OSError):
                    # From here on not even this user can map it for writing; kernels since 5.1.
                    fcntl.fcntl(self.descriptor, _ADD_SEALS, _FUTURE_WRITE)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.size_bytes = size_bytes
        number = os.fstat(self.descriptor).st_ino
        self.name = f"{os.getpid()}.{self.descriptor}.{number}"
        self.freed_at = 0.0
        # Whoever in this process took it.
        self.user: object = None

    def range(self, offset: int, size_bytes: int) -> SharedMemory:
        """The reference to a part."""
        return SharedMemory(self.name, offset, size_bytes)

    def close(self) -> None:
        """Let go of it; views and other processes' mappings stay good."""
        os.close(self.descriptor)
        self.view = memoryview(b"")


class Segments:
    """The segments of this process, within a bound. May be used from several threads."""

    def __init__(self, limit_bytes: int, *, writable: bool = False) -> None:
        """writable: other processes of this user may write to them as well."""
        self._limit_bytes = limit_bytes
        self._writable = writable
        # The collector may end a lease in the midst of all this.
        self._lock = threading.RLock()
        self._taken: dict[str, Segment] = {}
        # Oldest first.
        self._free: list[Segment] = []
        # Of all segments, taken and free.
        self.total_bytes = 0

    @property
    def taken(self) -> int:
        """How many segments are in use."""
        return len(self._taken)

    def take(self, size_bytes: int, user: object = None) -> Segment | None:
        """A segment of at least this size whose content nobody reads; None: there is no room."""
        with self._lock:
            segment = self._fitting(size_bytes) or self._new(size_bytes)
            if segment is not None:
                segment.user = user
                self._taken[segment.name] = segment
            return segment

    def free(self, name: str) -> None:
        """Nobody reads it any more: it may be taken again. Harmless for one that is not taken."""
        with self._lock:
            segment = self._taken.pop(name, None)
            if segment is not None:
                segment.user = None
                segment.freed_at = time.monotonic()
                self._free.append(segment)

    def discard(self, name: str) -> None:
        """Somebody may still read it: let go of it for good."""
        with self._lock:
            self._close(self._taken.pop(name, None))

    def discard_of(self, user: object) -> None:
        """Discard all that this user took."""
        with self._lock:
            for name in [each.name for each in self._taken.values() if each.user is user]:
                self._close(self._taken.pop(name))

    def discard_all(self) -> None:
        """Discard all that is taken."""
        with self._lock:
            while self._taken:
                self._close(self._taken.popitem()[1])

    def trim(self, idle_s: float) -> None:
        """Give back to the system what has been free for so long."""
        with self._lock:
            since = time.monotonic() - idle_s
            while self._free and self._free[0].freed_at <= since:
                self._close(self._free.pop(0))

    def _fitting(self, size_bytes: int) -> Segment | None:
        most = _LEAST_FILL * max(size_bytes, THRESHOLD_BYTES)
        best = None
        for segment in reversed(self._free):
            if size_bytes <= segment.size_bytes <= most and (
                best is None or segment.size_bytes < best.size_bytes
            ):
                best = segment
        if best is not None:
            self._free.remove(best)
        return best

    def _new(self, size_bytes: int) -> Segment | None:
        # An eighth of slack lets tensors that differ a little share segments, and costs no memory
        # before it is written to.
        step = max(_PAGE, 1 << max(0, size_bytes.bit_length() - 3))
        size_bytes = -(-size_bytes // step) * step
        while self._free and self.total_bytes + size_bytes > self._limit_bytes:
            self._close(self._free.pop(0))
        if self.total_bytes + size_bytes > self._limit_bytes:
            return None
        try:
            segment = Segment(size_bytes, writable=self._writable)
        except OSError:
            return None
        self.total_bytes += size_bytes
        return segment

    def _close(self, segment: Segment | None) -> None:
        if segment is not None:
            self.total_bytes -= segment.size_bytes
            segment.close()


class Lease:
    """A segment in the hands of one request; when nobody holds the lease, it is discarded."""

    __slots__ = ("_held", "_segments", "segment")

    def __init__(self, segments: Segments, segment: Segment) -> None:
        self._held = True
        self._segments = segments
        self.segment = segment

    def free(self) -> None:
        """Nobody reads the segment any more: others may have it."""
        if self._held:
            self._held = False
            self._segments.free(self.segment.name)

    def __del__(self) -> None:
        if self._held:
            self._segments.discard(self.segment.name)


class Mappings:
    """Other processes' segments as this one reads them. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, memoryview] = OrderedDict()

    def view(self, reference: SharedMemory) -> memoryview:
        """The bytes that it names, in place; whoever holds the view keeps them.

        Raises:
            LostError: they are gone, or were never there.
        """
        return part(self.segment(reference.segment_name), reference)

    def segment(self, segment_name: str) -> memoryview:
        """All of a segment; else as view."""
        with self._lock:
            view = self._open.get(segment_name)
            if view is None:
                view = self._open[segment_name] = _map(segment_name)
                if len(self._open) > _MOST_MAPPINGS:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(segment_name)
        return view

    def sweep(self) -> None:
        """Let go of what its owner has let go of, or died with: nobody will name it again."""
        with self._lock:
            for name in [each for each in self._open if not exists(each)]:
                del self._open[name]


def read(reference: SharedMemory) -> bytes:
    """A copy of the bytes that a reference names; raises LostError as Mappings.view."""
    return bytes(view(reference))


def view(reference: SharedMemory) -> memoryview:
    """As Mappings.view, but mapped for this once: for who reads it and lets go of it."""
    return part(_map(reference.segment_name), reference)


def part(view: memoryview, reference: SharedMemory) -> memoryview:
    """What a reference names in its segment; raises LostError if that lies outside."""
    end = reference.offset + reference.size_bytes
    if not 0 <= reference.offset <= end <= len(view):
        raise LostError(f"{reference} lies outside its segment of {len(view)} bytes")
    return view[reference.offset : end]


def _place(segment_name: str) -> tuple[str, int]:
    """Where a segment is found, and its number there."""
    try:
        process, descriptor, number = map(int, segment_name.split("."))
    except ValueError as error:
        raise LostError(f"{segment_name!r} names no segment") from error
    return f"/proc/{process}/fd/{descriptor}", number


def _map(segment_name: str) -> memoryview:
    path, number = _place(segment_name)
    try:
        # The descriptor may be a pipe or a terminal by now.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise LostError(f"segment {segment_name} cannot be opened: {error.strerror}") from error
    try:
        about = os.fstat(descriptor)
        # Only memory files have seals; an unsealed one could shrink under its readers.
        sealed = fcntl.fcntl(descriptor, _GET_SEALS) & _SIZE_SEALS == _SIZE_SEALS
        if about.st_ino != number or not sealed:
            raise LostError(f"segment {segment_name} is gone")
        return memoryview(mmap.mmap(descriptor, about.st_size, prot=mmap.PROT_READ))
    except (OSError, ValueError) as error:
        raise LostError(f"segment {segment_name} cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)


def exists(segment_name: str) -> bool:
    path, number = _place(segment_name)
    try:
        return os.stat(path).st_ino == number  # noqa: PTH116 (no object for a path as text)
    except OSError:
        return False
