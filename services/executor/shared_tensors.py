"""Tensors in shared memory, as an executor sees them: it reads requests in place, lends answers.

What it has lent comes back when the scheduler says so. What an instance has lent when its stream
breaks is let go of: whoever has it open keeps it, and whoever has not asks again. Used by the
instances' threads and by the event loop.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from nereid.core.errors import Unavailable
from nereid.core.messages import SharedMemory
from nereid.shm.mappings import LostError, Mappings
from nereid.shm.segments import (
    IDLE_S,
    THRESHOLD_BYTES,
    Segments,
    aligned,
    memory_domain,
    tidying_pause_s,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.pb import nereid_pb2 as pb

    Piece = bytes | memoryview

# To copy so much may take a while.
_LONG_BYTES = 1 << 20


class SharedTensors:
    """The executor's segments and its view of others'."""

    def __init__(self, limit_bytes: int, idle_s: float = IDLE_S) -> None:
        self.domain = memory_domain(limit_bytes)
        self.process = str(os.getpid())
        # Models' workers write their answers there themselves.
        self.segments = Segments(limit_bytes, writable=True)
        self._mappings = Mappings()
        self._idle_s = idle_s
        # How often to tidy.
        self.pause_s = tidying_pause_s(idle_s)

    def view(self, memory: pb.SharedMemory) -> memoryview:
        """A request's tensor, in place.

        Raises:
            Unavailable: its gateway is gone, or has given the request up.
        """
        try:
            return self._mappings.view(
                SharedMemory(memory.segment_name, memory.offset, memory.size_bytes)
            )
        except LostError as error:
            raise Unavailable(f"the data of the request is gone: {error}", accepted=True) from error

    def release(self, release: pb.Release) -> None:
        """What was lent comes back."""
        give_back = self.segments.discard if release.discard else self.segments.free
        for segment_name in release.segment_names:
            give_back(segment_name)

    def forget(self) -> None:
        """The scheduler is gone: nobody will give back what is lent."""
        self.segments.discard_all()

    def tidy(self) -> None:
        """Let go of what nobody has used for a while."""
        self.segments.trim(self._idle_s)
        self._mappings.sweep()


class Lender:
    """One instance's way of lending its answers."""

    def __init__(self, shared_tensors: SharedTensors) -> None:
        self._segments = shared_tensors.segments
        # Of the batch under way.
        self.lent: list[str] = []

    def lend(self, outputs: Sequence[Piece]) -> list[SharedMemory] | None:
        """An answer's outputs, copied to a segment; None: they are small, or there is no room."""
        offsets, end = [], 0
        for output in outputs:
            offsets.append(end)
            end += aligned(len(output))
        if end < THRESHOLD_BYTES:
            return None
        segment = self._segments.take(end, self)
        if segment is None:
            return None
        self.lent.append(segment.name)
        view = segment.view
        references = []
        for output, offset in zip(outputs, offsets, strict=True):
            size = len(output)
            if size < _LONG_BYTES:
                view[offset : offset + size] = output
            else:
                # numpy lets go of the interpreter meanwhile: new memory takes seconds to the
                # gigabyte, and a process that answers no ping for so long is taken for dead.
                place = np.frombuffer(view, np.uint8, size, offset)
                np.copyto(place, np.frombuffer(output, np.uint8))
            references.append(segment.range(offset, size))
        return references

    def room(self, size_bytes: int) -> SharedMemory | None:
        """Memory for an answer that somebody else writes; None: there is none to be had."""
        segment = self._segments.take(size_bytes, self)
        return None if segment is None else segment.range(0, segment.size_bytes)

    def free(self, segment_name: str) -> None:
        """What was lent, or given as room, is not used."""
        self._segments.free(segment_name)

    def take_back(self) -> None:
        """The batch under way failed: nobody has heard of what it lent."""
        for name in self.lent:
            self._segments.free(name)

    def break_off(self) -> None:
        """Nobody can be told any more that answers were lent, or will say that they come back."""
        self._segments.discard_of(self)
