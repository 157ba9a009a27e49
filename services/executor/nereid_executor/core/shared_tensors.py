"""Tensors in shared memory: requests' tensors are read in place, responses' are copied to it.

A response's segment is lent until the scheduler releases it. When a stream breaks, its lent
segments are discarded. A receiver that has opened one can still read it; others request the
inference again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from nereid.core.errors import Unavailable
from nereid.shm.mappings import SegmentLostError, SegmentMappings
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import (
    IDLE_S,
    SHM_THRESHOLD_BYTES,
    SegmentPool,
    aligned,
    shm_namespace,
    trim_interval_s,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.pb import nereid_pb2 as pb

    Piece = bytes | memoryview

# A copy of this size takes so long that the interpreter's lock should be released.
_LONG_COPY_BYTES = 1 << 20


class SharedTensors:
    """The segments of this executor, and mappings of other processes' segments."""

    def __init__(self, limit_bytes: int, idle_s: float = IDLE_S) -> None:
        self.domain = shm_namespace(limit_bytes)
        self.process = str(os.getpid())
        # Models' workers write their responses into these segments themselves.
        self.segments = SegmentPool(limit_bytes, writable=True)
        self._mappings = SegmentMappings()
        self._idle_s = idle_s
        self.trim_interval_s = trim_interval_s(idle_s)

    def view(self, memory: pb.SharedMemory) -> memoryview:
        """Return the bytes of a request's tensor, in place; raise Unavailable if they are lost."""
        try:
            return self._mappings.view(
                SharedMemory(memory.segment_name, memory.offset, memory.size_bytes)
            )
        except SegmentLostError as error:
            raise Unavailable(
                f"the request's data in shared memory was lost: {error}", accepted=True
            ) from error

    def release_segments(self, release: pb.Release) -> None:
        """Free segments whose responses were read; if the command says so, discard the segments."""
        free = self.segments.discard if release.discard else self.segments.free_segment
        for segment_name in release.segment_names:
            free(segment_name)

    def trim_idle(self) -> None:
        """Return memory to the system if it has not been used for a while."""
        self.segments.trim(self._idle_s)
        self._mappings.sweep()


class OutputLender:
    """Lends shared memory for the responses of one instance."""

    def __init__(self, shared_tensors: SharedTensors) -> None:
        self._segments = shared_tensors.segments
        # Names of the current batch's segments.
        self.lent: list[str] = []
        self._closed = False

    def close(self) -> None:
        """Stop lending, because nobody would release the memory."""
        self._closed = True

    def lend(self, outputs: Sequence[Piece]) -> list[SharedMemory] | None:
        """Copy outputs to a segment, and return references to them.

        Returns `None` if the outputs are small, or if the shared memory is full.
        """
        offsets, end = [], 0
        for output in outputs:
            offsets.append(end)
            end += aligned(len(output))
        if end < SHM_THRESHOLD_BYTES or self._closed:
            return None
        segment = self._segments.acquire_segment(end, self)
        if segment is None:
            return None
        self.lent.append(segment.name)
        view = segment.view
        references = []
        for output, offset in zip(outputs, offsets, strict=True):
            size = len(output)
            if size < _LONG_COPY_BYTES:
                view[offset : offset + size] = output
            else:
                # numpy releases the interpreter's lock. The first use of memory takes seconds per
                # gigabyte, and a process that answers no pings for that long is considered dead.
                target = np.frombuffer(view, np.uint8, size, offset)
                np.copyto(target, np.frombuffer(output, np.uint8))
            references.append(segment.range(offset, size))
        return references

    def allocate_buffer(self, size_bytes: int) -> SharedMemory | None:
        """Return memory for a response that the model's process writes; `None` if none is free."""
        segment = None if self._closed else self._segments.acquire_segment(size_bytes, self)
        return None if segment is None else segment.range(0, segment.size_bytes)

    def grant_buffer(self, size_bytes: int) -> SharedMemory | None:
        """Return memory that a process may use again after each read response; `None` if full."""
        segment = None if self._closed else self._segments.grant_segment(size_bytes, self)
        return None if segment is None else segment.range(0, segment.size_bytes)

    def end_grant(self, segment_name: str) -> None:
        """Discard a granted segment that the process no longer uses."""
        self._segments.discard_granted(segment_name, self)

    def free_segment(self, segment_name: str) -> None:
        """Free a segment of this instance that turned out not to be needed."""
        self._segments.free_segment(segment_name)

    def free_lent(self) -> None:
        """Free the segments of a failed batch. No response of it was sent."""
        for name in self.lent:
            self._segments.free_segment(name)

    def discard_lent(self) -> None:
        """Discard all lent segments after the stream broke, since they may never be released."""
        self._segments.discard_segments_of(self)
