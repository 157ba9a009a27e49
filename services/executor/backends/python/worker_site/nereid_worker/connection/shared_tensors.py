"""Tensors in other processes' segments: inputs are mapped, outputs written to a given buffer.

A segment is an anonymous file of another process. Its name holds the process id, the descriptor
and the inode number, so that a descriptor that was closed and reused is noticed.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ..pb_utils.errors import TritonModelException
from ..protocol import wire
from ..protocol.wire import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Smaller tensors are sent inline.
LEAST_BYTES = 1 << 16
_ALIGNMENT = 64
_PAGE = mmap.PAGESIZE


class MappedInputs:
    """The inputs of one batch that are in segments, mapped copy-on-write.

    Their owner reuses the memory once the request has its response: call copy_held() before that.
    """

    def __init__(self) -> None:
        self._maps: list[weakref.ref[mmap.mmap]] = []

    def copy_held(self) -> None:
        """Copy the inputs that the model still holds."""
        for each in self._maps:
            mapped = each()
            if mapped is not None:
                # Writing to a private page copies it.
                pages = np.frombuffer(mapped, np.uint8)[::_PAGE]
                np.bitwise_or(pages, 0, out=pages)

    def view(self, place: Range) -> memoryview:
        """A tensor's bytes; raises TritonModelException if the segment no longer exists."""
        if not place.size:
            os.close(_open_segment(place.segment, os.O_RDONLY))
            return memoryview(b"")
        mapped, begin = _map_range(place.segment, place.offset, place.offset + place.size)
        self._maps.append(weakref.ref(mapped))
        return memoryview(mapped)[place.offset - begin :]


def write_outputs(tensors: Sequence[Any], buffer: Range) -> Sequence[Any]:
    """Write a response's tensors to its buffer and return their places.

    Tensors that are small together, or too large for the buffer, are returned as they are.
    """
    offsets, size = layout(tensors)
    if not LEAST_BYTES <= size <= buffer.size:
        return tensors
    try:
        descriptor = _open_segment(buffer.segment, os.O_WRONLY)
    except TritonModelException:
        return tensors
    try:
        return write_tensors(descriptor, tensors, buffer, offsets)
    finally:
        os.close(descriptor)


def map_response(ranges: Sequence[Range], on_released: Callable[[], None]) -> list[memoryview]:
    """Map the tensors of a response, all in one segment, copy-on-write.

    on_released is called, by any thread, when no view of them is left.

    Raises:
        TritonModelException: the segment no longer exists; on_released is not called.
    """
    mapped, begin = _map_range(
        ranges[0].segment,
        min(each.offset for each in ranges),
        max(each.offset + each.size for each in ranges),
    )
    # Not at exit: the executor notices the end of the process.
    weakref.finalize(mapped, on_released).atexit = False
    whole = memoryview(mapped)
    return [whole[each.offset - begin : each.offset - begin + each.size] for each in ranges]


def layout(tensors: Sequence[Any]) -> tuple[list[int], int]:
    """The offsets of tensors side by side, and their size together."""
    offsets = []
    end = 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-wire.size_of(tensor) // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def write_tensors(
    descriptor: int, tensors: Sequence[Any], buffer: Range, offsets: Sequence[int]
) -> list[Range]:
    """Write tensors to an open segment; offsets count from the start of the buffer."""
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


def _map_range(segment: str, begin: int, end: int) -> tuple[mmap.mmap, int]:
    """Map a part of a segment copy-on-write; the map, and the offset at which it begins."""
    begin -= begin % _PAGE
    descriptor = _open_segment(segment, os.O_RDONLY)
    try:
        if not begin < end <= os.fstat(descriptor).st_size:
            raise TritonModelException("the data of the request lies outside its segment")
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(descriptor, end - begin, mmap.MAP_PRIVATE, rights, offset=begin), begin
    except OSError as error:
        raise TritonModelException(f"the data of the request cannot be read: {error}") from error
    finally:
        os.close(descriptor)


def _open_segment(segment: str, mode: int) -> int:
    try:
        process, descriptor, number = map(int, segment.split("."))
        # The descriptor may be a pipe or a terminal by now.
        flags = mode | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        opened = os.open(f"/proc/{process}/fd/{descriptor}", flags)
    except (OSError, ValueError) as error:
        raise TritonModelException("the data of the request is gone") from error
    if os.fstat(opened).st_ino != number:
        os.close(opened)
        raise TritonModelException("the data of the request is gone")
    return opened
