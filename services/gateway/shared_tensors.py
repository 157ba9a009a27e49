"""Large tensors in shared memory, as a gateway sees them.

What comes in is put together in a segment of its own (a room), which the request leases until its
answer is there; answers' tensors are read in the executor's segment, which goes back when the last
view of it is gone: that is when the client's socket has taken it. Only while the scheduler is known
to share memory; else everything is inline. Knows no protocol of clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from nereid.core.messages import Release, SharedMemory
from nereid.shm.mappings import Mappings, part
from nereid.shm.segments import (
    IDLE_S,
    THRESHOLD_BYTES,
    Lease,
    Segments,
    aligned,
    memory_domain,
    tidying_pause_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferRequest, InferResponse, Payload


class MessageBuffer:
    """A request's body, or what is to become one, in a segment."""

    __slots__ = ("_offset", "lease", "view")

    def __init__(self, lease: Lease, offset: int, size_bytes: int) -> None:
        self.lease = lease
        self._offset = offset
        # As long as the body.
        self.view = lease.segment.view[offset : offset + size_bytes]

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, part: slice) -> SharedMemory:
        """The reference to a part of the body, as a slice of bytes would be its copy."""
        return self.lease.segment.range(self._offset + part.start, part.stop - part.start)


class SharedTensors:
    """One gateway's segments, and its view of executors'."""

    def __init__(self, limit_bytes: int, idle_s: float = IDLE_S) -> None:
        self.domain = memory_domain(limit_bytes)
        # Whether the scheduler, as far as it is known, can hand on references of this gateway.
        self.shared = False
        self.segments = Segments(limit_bytes)
        self._idle_s = idle_s
        self._mappings = Mappings()
        self._done: deque[str] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tidying: asyncio.TimerHandle | None = None
        # Takes back to the scheduler what answers came in.
        self._send: Callable[[Release], None] = _drop

    def start(self, send: Callable[[Release], None]) -> None:
        """Call from the event loop."""
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._tidy()

    def close(self) -> None:
        """No more is sent."""
        self._send = _drop
        if self._tidying is not None:
            self._tidying.cancel()

    # --- requests

    def room(self, size_bytes: int, header_bytes: int = 0) -> MessageBuffer | None:
        """Where to put a body of this size, so that what is behind its header is aligned; None: in
        bytes.
        """
        if not self.shared or size_bytes < THRESHOLD_BYTES:
            return None
        offset = aligned(header_bytes) - header_bytes
        segment = self.segments.take(offset + size_bytes)
        if segment is None:
            return None
        return MessageBuffer(Lease(self.segments, segment), offset, size_bytes)

    def stage(self, request: InferRequest) -> None:
        """Move the tensors of a request that came in bytes to a segment, if there are many."""
        if request.lease is not None or not self.shared:
            return
        payloads: list[Any] = request.payloads
        room = self.room(sum(aligned(len(each)) for each in payloads))
        if room is None:
            return
        offset = 0
        for index, payload in enumerate(payloads):
            size = len(payload)
            room.view[offset : offset + size] = payload
            payloads[index] = room[offset : offset + size]
            offset += aligned(size)
        request.lease = room.lease

    def bring_in(self, request: InferRequest) -> None:
        """Make the tensors of a request inline: whoever it goes to may not see the segment."""
        request.payloads = [bytes(tensor_bytes(request, each)) for each in request.payloads]
        request.lease = None

    # --- answers

    def open(self, response: InferResponse) -> None:
        """Replace references by views of what they name.

        Raises:
            LostError: the executor died in the meantime.
        """
        references: list[Any] = response.payloads
        # An object of its own that all views of this answer depend on, to see the last one go.
        watched = np.frombuffer(self._mappings.segment(response.segment_name), np.uint8)
        whole = watched.data
        response.payloads = [part(whole, each) for each in references]
        weakref.finalize(watched, self.give_back, response.segment_name).atexit = False

    def give_back(self, segment_name: str) -> None:
        """The segment of an answer that nobody opened, or nobody will look at again."""
        self._done.append(segment_name)
        # Views may be dropped by any thread, and at any time.
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        done = []
        while self._done:
            done.append(self._done.popleft())
        if done:
            self._send(Release(tuple(done)))

    def _tidy(self) -> None:
        self.segments.trim(self._idle_s)
        self._mappings.sweep()
        if self._loop is not None:
            self._tidying = self._loop.call_later(tidying_pause_s(self._idle_s), self._tidy)


def tensor_bytes(request: InferRequest, payload: Payload) -> bytes | memoryview:
    """The bytes of one of a request's tensors, wherever they lie."""
    if not isinstance(payload, SharedMemory):
        return payload
    assert request.lease is not None, "a reference without the segment it is for"
    return request.lease.segment.view[payload.offset : payload.offset + payload.size_bytes]


def _drop(_release: Release) -> None:
    pass
