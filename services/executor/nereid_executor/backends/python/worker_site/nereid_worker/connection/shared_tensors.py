"""Reads inputs from other processes' shared-memory segments, and writes outputs to them.

A segment's name has the owner's process id, the descriptor, and the inode number, which shows
whether the descriptor was reused. Ordinary segments stay mapped and inputs are copied: mapping 200
kB again takes three times as long as copying 200 kB.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from ..protocol import wire
from ..protocol.wire import Range
from ..values.errors import TritonModelException
from .idle_sweeper import IdleSweeper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Minimum bytes of all tensors together for a segment. Smaller tensors are sent inline.
MIN_BYTES = 1 << 16
# Maximum bytes of a segment that stays mapped.
MAX_KEPT_BYTES = 1 << 22
_MAX_KEPT = 64
_KEPT_S = 10.0
# Maximum bytes of an input that is copied. Larger inputs are mapped copy-on-write.
_MAX_COPIED_BYTES = 1 << 20
_ALIGNMENT = 64
_PAGE = mmap.PAGESIZE
_OUTSIDE = "the data of the request lies outside its segment"
_GONE = "the data of the request is gone"


class KeptMappings:
    """Mappings of at most `most` segments. Thread-safe.

    A segment without use is unmapped after idle_s, because its owner may have closed it.
    """

    def __init__(self, most: int = _MAX_KEPT, idle_s: float = _KEPT_S) -> None:
        self._most = most
        # The lock is reentrant: a response sender may be finalised in a thread that holds it.
        self._lock = threading.RLock()
        # Key: a segment's name, and whether the mapping is writable. The last used key is at the
        # end.
        self._kept: OrderedDict[tuple[str, bool], memoryview] = OrderedDict()
        # Keys that were used since the last sweep.
        self._used: set[tuple[str, bool]] = set()
        self._sweeper = IdleSweeper(self._sweep, idle_s)

    def __len__(self) -> int:
        return len(self._kept)

    def view(self, segment: str, *, writable: bool = False) -> memoryview | None:
        """Return a view of a segment; None if it is too large, TritonModelException if gone."""
        key = segment, writable
        with self._lock:
            self._used.add(key)
            view = self._kept.get(key)
            if view is not None:
                self._kept.move_to_end(key)
                return view
            view = map_whole(segment, writable=writable)
            if view is not None:
                self._kept[key] = view
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
                self._sweeper.start()
        return view

    def _sweep(self) -> bool:
        with self._lock:
            for unused in [key for key in self._kept if key not in self._used]:
                del self._kept[unused]
            self._used.clear()
            return bool(self._kept)


_mappings = KeptMappings()


def copy_of(place: Range) -> memoryview | None:
    """Return a copy of a tensor, or None if it is large; TritonModelException if it is gone."""
    if place.size > _MAX_COPIED_BYTES:
        return None
    mapped = _mappings.view(place.segment)
    if mapped is None:
        return None
    end = place.offset + place.size
    if end > len(mapped):
        raise TritonModelException(_OUTSIDE)
    return memoryview(bytearray(mapped[place.offset : end]))


class MappedInputs:
    """The inputs of one batch that are in segments, mapped copy-on-write.

    The owner of the inputs reuses the memory once the request has its response. Call copy_held()
    before the response is sent.
    """

    def __init__(self) -> None:
        self._maps: list[weakref.ref[mmap.mmap]] = []

    def copy_held(self) -> None:
        """Copy the inputs that the model still holds, so that they keep their values."""
        for reference in self._maps:
            mapped = reference()
            if mapped is not None:
                # A write makes the kernel copy the page of the private mapping.
                pages = np.frombuffer(mapped, np.uint8)[::_PAGE]
                np.bitwise_or(pages, 0, out=pages)

    def view(self, place: Range) -> memoryview:
        """Return a view of a tensor's bytes; raise TritonModelException if the segment is gone."""
        if not place.size:
            os.close(_open_segment(place.segment, os.O_RDONLY))
            return memoryview(b"")
        mapped, begin = _map_range(place.segment, place.offset, place.offset + place.size)
        self._maps.append(weakref.ref(mapped))
        return memoryview(mapped)[place.offset - begin :]


def write_outputs(tensors: Sequence[Any], buffer: Range) -> Sequence[Any]:
    """Write tensors to the output buffer and return their places; unchanged if they do not fit."""
    offsets, size = layout(tensors)
    if not MIN_BYTES <= size <= buffer.size:
        return tensors
    try:
        view = _mappings.view(buffer.segment, writable=True)
        if view is not None:
            return copy_tensors(view, tensors, buffer, offsets)
        descriptor = _open_segment(buffer.segment, os.O_WRONLY)
    except TritonModelException:
        return tensors
    try:
        return write_tensors(descriptor, tensors, buffer, offsets)
    finally:
        os.close(descriptor)


def copy_response(ranges: Sequence[Range]) -> list[memoryview] | None:
    """Return copies of tensors; None if they are large, TritonModelException if gone."""
    if sum(place.size for place in ranges) > _MAX_COPIED_BYTES:
        return None
    copies = [copy_of(place) for place in ranges]
    return None if None in copies else copies  # type: ignore[return-value]  # checked


def map_response(ranges: Sequence[Range], on_released: Callable[[], None]) -> list[memoryview]:
    """Map a response's tensors copy-on-write. They are all in one segment.

    When no view of them is left, any thread calls on_released. If the segment is gone, it is not
    called and TritonModelException is raised.
    """
    mapped, begin = _map_range(
        ranges[0].segment,
        min(place.offset for place in ranges),
        max(place.offset + place.size for place in ranges),
    )
    # At exit, the executor notices that the process has ended.
    weakref.finalize(mapped, on_released).atexit = False
    whole = memoryview(mapped)
    return [whole[place.offset - begin : place.offset - begin + place.size] for place in ranges]


def layout(tensors: Sequence[Any]) -> tuple[list[int], int]:
    """Return each tensor's offset in a buffer that holds all of them, and the total size."""
    offsets = []
    end = 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-wire.size_of(tensor) // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def copy_tensors(
    view: memoryview, tensors: Sequence[Any], buffer: Range, offsets: Sequence[int]
) -> list[Range]:
    """Copy tensors to a mapped segment. Offsets count from the start of the buffer."""
    ranges = []
    for tensor, offset in zip(tensors, offsets):  # noqa: B905 - Python 3.9
        size, begin = wire.size_of(tensor), buffer.offset + offset
        view[begin : begin + size] = wire.as_bytes(tensor)
        ranges.append(Range(buffer.segment, begin, size))
    return ranges


def write_tensors(
    descriptor: int, tensors: Sequence[Any], buffer: Range, offsets: Sequence[int]
) -> list[Range]:
    """Write tensors to an open segment. Offsets count from the start of the buffer."""
    ranges = []
    for tensor, offset in zip(tensors, offsets):  # noqa: B905 - Python 3.9
        _write_bytes(descriptor, wire.as_bytes(tensor), buffer.offset + offset)
        ranges.append(Range(buffer.segment, buffer.offset + offset, wire.size_of(tensor)))
    return ranges


def _write_bytes(descriptor: int, data: memoryview, place: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, place)
        data = data[count:]
        place += count


def map_whole(segment: str, *, writable: bool) -> memoryview | None:
    """Map a whole segment; None if it is too large, TritonModelException if it cannot be mapped."""
    descriptor = _open_segment(segment, os.O_RDWR if writable else os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_KEPT_BYTES:
            return None
        rights = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        return memoryview(mmap.mmap(descriptor, size, mmap.MAP_SHARED, rights))
    except (OSError, ValueError) as error:
        raise TritonModelException(f"the data of the request cannot be read: {error}") from error
    finally:
        os.close(descriptor)


def _map_range(segment: str, begin: int, end: int) -> tuple[mmap.mmap, int]:
    begin -= begin % _PAGE
    descriptor = _open_segment(segment, os.O_RDONLY)
    try:
        if not begin < end <= os.fstat(descriptor).st_size:
            raise TritonModelException(_OUTSIDE)
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(descriptor, end - begin, mmap.MAP_PRIVATE, rights, offset=begin), begin
    except OSError as error:
        raise TritonModelException(f"the data of the request cannot be read: {error}") from error
    finally:
        os.close(descriptor)


def _open_segment(segment: str, mode: int) -> int:
    try:
        process, descriptor, number = map(int, segment.split("."))
        # If the owner has closed the segment, the descriptor may now be a pipe or a terminal.
        flags = mode | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        opened = os.open(f"/proc/{process}/fd/{descriptor}", flags)
    except (OSError, ValueError) as error:
        raise TritonModelException(_GONE) from error
    if os.fstat(opened).st_ino != number:
        os.close(opened)
        raise TritonModelException(_GONE)
    return opened
