"""Shared memory for the large tensors of a gateway's requests and responses.

A request leases a segment of the gateway until its response arrives. Responses are read in the
executor's segment, which is released when its last view is dropped, after the client's socket has
taken the data. Tensors are inline until the scheduler is known to share memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import InferResponse, error_status_of
from nereid.shm.mappings import SegmentMappings, part
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import (
    IDLE_S,
    SHM_THRESHOLD_BYTES,
    Lease,
    SegmentPool,
    aligned,
    shm_namespace,
    trim_interval_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import InferRequest, Payload

    ReleaseSegments = Callable[[tuple[str, ...]], None]

_RESPONSE_LOST: Final = "the executor was lost before its response was read"


class MessageBuffer:
    """Buffer for the body of a request, in a segment."""

    __slots__ = ("_offset", "lease", "view")

    def __init__(self, lease: Lease, offset: int, size_bytes: int) -> None:
        self.lease = lease
        self._offset = offset
        self.view = lease.segment.view[offset : offset + size_bytes]

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, part: slice) -> SharedMemory:
        """Return a reference to a part of the body, without copying it."""
        return self.lease.segment.range(self._offset + part.start, part.stop - part.start)


class TensorMemory:
    """Segments of one gateway, and its mappings of executors' segments."""

    def __init__(self, limit_bytes: int, idle_s: float = IDLE_S) -> None:
        self.domain = shm_namespace(limit_bytes)
        # True if the scheduler is known to share memory with this gateway.
        self.shared = False
        self.segments = SegmentPool(limit_bytes)
        self._idle_s = idle_s
        self._mappings = SegmentMappings()
        # Segments to release, because nobody reads their responses any more.
        self._released: deque[str] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._cleanup_timer: asyncio.TimerHandle | None = None
        self._release_segments: ReleaseSegments | None = None

    def start(self, release_segments: ReleaseSegments) -> None:
        """Begin to release segments. release_segments: gets the names of unread segments."""
        self._release_segments = release_segments
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._clean_up()

    def close(self) -> None:
        """Stop releasing segments."""
        self._release_segments = None
        if self._cleanup_timer is not None:
            self._cleanup_timer.cancel()

    def on_scheduler_domain(self, domain: str) -> None:
        """Note the domain in which the scheduler shares memory; empty if it shares none."""
        self.shared = bool(domain) and domain == self.domain

    def message_buffer(self, size_bytes: int, header_bytes: int = 0) -> MessageBuffer | None:
        """Return a buffer for a body, or None to receive it as bytes.

        header_bytes: size of the header. The rest is aligned in the buffer.
        """
        if not self.shared or size_bytes < SHM_THRESHOLD_BYTES:
            return None
        offset = aligned(header_bytes) - header_bytes
        segment = self.segments.acquire_segment(offset + size_bytes)
        if segment is None:
            return None
        return MessageBuffer(Lease(self.segments, segment), offset, size_bytes)

    def stage(self, request: InferRequest) -> None:
        """Move the tensors of a request from bytes to a segment, if they are large."""
        for target, payload in self._place_payloads(request):
            target[:] = payload

    async def stage_in_thread(self, request: InferRequest) -> None:
        """Move tensors to a segment in a thread, since the copy would block the event loop."""
        if copies := self._place_payloads(request):
            await asyncio.to_thread(_copy_all, copies)

    def _place_payloads(self, request: InferRequest) -> list[tuple[memoryview, bytes]]:
        if request.lease is not None or not self.shared:
            return []
        payloads: list[Any] = request.payloads
        buffer = self.message_buffer(sum(aligned(len(payload)) for payload in payloads))
        if buffer is None:
            return []
        copies = []
        offset = 0
        for index, payload in enumerate(payloads):
            size = len(payload)
            copies.append((buffer.view[offset : offset + size], payload))
            payloads[index] = buffer[offset : offset + size]
            offset += aligned(size)
        request.lease = buffer.lease
        return copies

    def make_inline(self, request: InferRequest) -> None:
        """Replace the references in a request by bytes, for a receiver without the segment."""
        if request.lease is not None:
            request.payloads = [
                bytes(tensor_bytes(request, payload)) for payload in request.payloads
            ]
            request.lease = None

    def open_response(self, response: InferResponse) -> None:
        """Replace the references in a response by views of shared memory.

        Raises SegmentLostError if the executor has died meanwhile.
        """
        # A gateway starts without NumPy (core.deferred_imports).
        import numpy as np  # noqa: PLC0415

        references: list[Any] = response.payloads
        # All views refer to this array, so it is collected after the last view.
        watched = np.frombuffer(self._mappings.segment(response.segment_name), np.uint8)
        whole = watched.data
        response.payloads = [part(whole, reference) for reference in references]
        weakref.finalize(watched, self._on_unread, response.segment_name).atexit = False

    def lost_response(self, response: InferResponse) -> InferResponse:
        """Return the error to deliver in place of a response whose segment is lost."""
        self._on_unread(response.segment_name)
        error = Unavailable(_RESPONSE_LOST, accepted=True)
        return InferResponse(response.id, error=error_status_of(error))

    def _on_unread(self, segment_name: str) -> None:
        """Release a segment. Its last view may be collected in any thread at any time."""
        self._released.append(segment_name)
        loop = self._loop
        if loop is None:
            return
        with contextlib.suppress(RuntimeError):
            if threading.get_ident() == self._loop_thread:
                # The usual case needs no system call to wake up the loop.
                loop.call_soon(self._flush_released)
            else:
                loop.call_soon_threadsafe(self._flush_released)

    def _flush_released(self) -> None:
        segment_names = []
        while self._released:
            segment_names.append(self._released.popleft())
        if segment_names and self._release_segments is not None:
            self._release_segments(tuple(segment_names))

    def _clean_up(self) -> None:
        self.segments.trim(self._idle_s)
        self._mappings.sweep()
        if self._loop is not None:
            pause_s = trim_interval_s(self._idle_s)
            self._cleanup_timer = self._loop.call_later(pause_s, self._clean_up)


async def fill_in_thread(buffer: MessageBuffer, message: bytes) -> None:
    """Copy a message into a buffer of the same size, in a thread."""
    await asyncio.to_thread(_copy_all, [(buffer.view, message)])


def _copy_all(copies: Sequence[tuple[memoryview, bytes]]) -> None:
    import numpy as np  # noqa: PLC0415 - as above

    for target, payload in copies:
        if payload:
            # NumPy releases the interpreter's lock while it copies.
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(payload, np.uint8))


def tensor_bytes(request: InferRequest, payload: Payload) -> bytes | memoryview:
    """Return the bytes of a request's tensor, which are inline or in its segment."""
    if not isinstance(payload, SharedMemory):
        return payload
    assert request.lease is not None, "a reference to shared memory without its lease"
    return request.lease.segment.view[payload.offset : payload.offset + payload.size_bytes]
