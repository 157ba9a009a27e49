"""Tensors in memory that processes share: inputs as they lie there, outputs put where they may lie.

A segment is an anonymous file of another process; its name says whose, which descriptor, and the
file's own number, so that a descriptor that has become something else is noticed.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from . import wire
from .errors import TritonModelException
from .wire import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Less is sent inline.
LEAST_BYTES = 1 << 16
_ALIGNMENT = 64
_PAGE = mmap.PAGESIZE


class Inputs:
    """The shared tensors of one request, mapped so that what the model writes is its own.

    Once the request is answered their owner uses the memory for something else: keep() before that.
    """

    def __init__(self) -> None:
        self._maps: list[weakref.ref[mmap.mmap]] = []

    @property
    def used(self) -> bool:
        """Whether there are any."""
        return bool(self._maps)

    def keep(self) -> None:
        """Copy what the model still holds."""
        for each in self._maps:
            mapped = each()
            if mapped is not None:
                # Writing to a page makes it this process's own.
                pages = np.frombuffer(mapped, np.uint8)[::_PAGE]
                np.bitwise_or(pages, 0, out=pages)

    def view(self, place: Range) -> memoryview:
        """A tensor's bytes; raises TritonModelException if they are gone."""
        if not place.size:
            os.close(_opened(place.segment, os.O_RDONLY))
            return memoryview(b"")
        mapped, begin = _mapped(place.segment, place.offset, place.offset + place.size)
        self._maps.append(weakref.ref(mapped))
        return memoryview(mapped)[place.offset - begin :]


def put(tensors: Sequence[Any], room: Range) -> Sequence[Any]:
    """Write an answer's tensors where they may lie, unless they are small or too large for it."""
    offsets, size = places(tensors)
    if not LEAST_BYTES <= size <= room.size:
        return tensors
    try:
        descriptor = _opened(room.segment, os.O_WRONLY)
    except TritonModelException:
        return tensors
    try:
        return write(descriptor, tensors, room, offsets)
    finally:
        os.close(descriptor)


def borrowed(ranges: Sequence[Range], give_back: Callable[[], None]) -> list[memoryview]:
    """The tensors of an answer, which lie in one segment; give_back is called, by any thread, when
    nobody has any of them any more. What the model writes to them is its own.

    Raises:
        TritonModelException: they are gone; give_back is not called.
    """
    mapped, begin = _mapped(
        ranges[0].segment,
        min(each.offset for each in ranges),
        max(each.offset + each.size for each in ranges),
    )
    # When the process ends nobody needs to be told.
    weakref.finalize(mapped, give_back).atexit = False
    whole = memoryview(mapped)
    return [whole[each.offset - begin : each.offset - begin + each.size] for each in ranges]


def places(tensors: Sequence[Any]) -> tuple[list[int], int]:
    """Where tensors begin that lie side by side, and where they end."""
    offsets = []
    end = 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-wire.size_of(tensor) // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def write(
    descriptor: int, tensors: Sequence[Any], room: Range, offsets: Sequence[int]
) -> list[Range]:
    """Write tensors to a segment that is open, offsets from where the room begins."""
    ranges = []
    for tensor, offset in zip(tensors, offsets):  # noqa: B905 - Python 3.9
        _write(descriptor, wire.as_bytes(tensor), room.offset + offset)
        ranges.append(Range(room.segment, room.offset + offset, wire.size_of(tensor)))
    return ranges


def _write(descriptor: int, data: memoryview, place: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, place)
        data = data[count:]
        place += count


def _mapped(segment: str, begin: int, end: int) -> tuple[mmap.mmap, int]:
    """A part of a segment, copied where it is written to; and where what is mapped begins."""
    begin -= begin % _PAGE
    descriptor = _opened(segment, os.O_RDONLY)
    try:
        if not begin < end <= os.fstat(descriptor).st_size:
            raise TritonModelException("the data of the request lies outside its segment")
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(descriptor, end - begin, mmap.MAP_PRIVATE, rights, offset=begin), begin
    except OSError as error:
        raise TritonModelException(f"the data of the request cannot be read: {error}") from error
    finally:
        os.close(descriptor)


def _opened(segment: str, mode: int) -> int:
    try:
        process, descriptor, number = map(int, segment.split("."))
        # It may be a pipe or a terminal by now.
        flags = mode | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        opened = os.open(f"/proc/{process}/fd/{descriptor}", flags)
    except (OSError, ValueError) as error:
        raise TritonModelException("the data of the request is gone") from error
    if os.fstat(opened).st_ino != number:
        os.close(opened)
        raise TritonModelException("the data of the request is gone")
    return opened
