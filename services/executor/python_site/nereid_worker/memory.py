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

if TYPE_CHECKING:
    from collections.abc import Sequence

# Less is sent inline.
_LEAST_BYTES = 1 << 16
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

    def view(self, place: wire.Range) -> memoryview:
        """A tensor's bytes; raises TritonModelException if they are gone."""
        begin = place.offset - place.offset % _PAGE
        end = place.offset + place.size
        descriptor = _opened(place.segment, os.O_RDONLY)
        try:
            if not place.size:
                return memoryview(b"")
            if end > os.fstat(descriptor).st_size:
                raise TritonModelException("the data of the request lies outside its segment")
            rights = mmap.PROT_READ | mmap.PROT_WRITE
            mapped = mmap.mmap(descriptor, end - begin, mmap.MAP_PRIVATE, rights, offset=begin)
        finally:
            os.close(descriptor)
        self._maps.append(weakref.ref(mapped))
        return memoryview(mapped)[place.offset - begin :]


def put(tensors: Sequence[Any], room: wire.Range) -> Sequence[Any]:
    """Write an answer's tensors where they may lie, unless they are small or too large for it."""
    places = []
    end = 0
    for tensor in tensors:
        places.append(end)
        end += -(-wire.size_of(tensor) // _ALIGNMENT) * _ALIGNMENT
    if not _LEAST_BYTES <= end <= room.size:
        return tensors
    try:
        descriptor = _opened(room.segment, os.O_WRONLY)
    except TritonModelException:
        return tensors
    try:
        for tensor, place in zip(tensors, places):  # noqa: B905 - Python 3.9
            _write(descriptor, wire.as_bytes(tensor), room.offset + place)
    finally:
        os.close(descriptor)
    return [
        wire.Range(room.segment, room.offset + place, wire.size_of(tensor))
        for tensor, place in zip(tensors, places)  # noqa: B905
    ]


def _write(descriptor: int, data: memoryview, place: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, place)
        data = data[count:]
        place += count


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
