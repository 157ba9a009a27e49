"""Queue of requests that wait for their model's first load, each for a limited time."""

# layout: not pure, uses asyncio and time
# layout: not covered, waits in an event loop

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.core.errors import DeadlineExceeded, NereidError, Unavailable
from nereid.core.retry_after import DEFAULT_MS
from nereid.core.wire.messages import InferResponse, error_status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nereid.core.wire.messages import InferRequest
    from nereid_scheduler.core.requests.entry import PendingRequest

    OnResponse = Callable[[InferResponse], None]
    # Called with a request's id and its PendingRequest in another queue.
    OnQueued = Callable[[int, PendingRequest], None]
    # Called with a request whose model was not loaded in time, and with the error.
    OnFailed = Callable[["HeldRequest", NereidError], None]


@dataclass(slots=True, eq=False)
class HeldRequest:
    """Request for a model that is being loaded. It is a PendingRequest."""

    request: InferRequest
    name: str
    version: str
    on_response: OnResponse
    on_queued: OnQueued
    on_failed: OnFailed
    since_ns: int
    queue: LoadQueue
    timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Remove the request from its queue."""
        self.queue.remove_request(self)

    def set_flow(self, *, paused: bool) -> None:
        """Do nothing, as there are no responses yet."""


class LoadQueue:
    """Held requests in order of arrival."""

    def __init__(self, limit_s: float, max_requests: int) -> None:
        """limit_s: seconds that a request may wait. max_requests: maximum number; 0: no limit."""
        self._limit_s = limit_s
        self._max_requests = max_requests
        self._held: dict[HeldRequest, None] = {}
        self._idle: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldRequest]:
        return iter(list(self._held))

    def hold_request(self, held: HeldRequest) -> None:
        """Add a request, and start its time limit; raise Unavailable if the queue is full."""
        if self._max_requests and len(self._held) >= self._max_requests:
            raise Unavailable("Exceeds maximum queue size", retry_after_ms=DEFAULT_MS)
        limit_s = self._limit_s
        text = f"model '{held.name}' is being loaded; waited {limit_s:g} s for it"
        error: NereidError = Unavailable(text, accepted=True)
        if held.request.deadline is not None:
            left_s = held.request.deadline - time.monotonic()
            if left_s < limit_s:
                limit_s = max(0.0, left_s)
                text = f"the deadline passed while model '{held.name}' was being loaded"
                error = DeadlineExceeded(text, accepted=True)
        self._held[held] = None
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(limit_s, self._fail_request, held, error)

    def remove_request(self, held: HeldRequest) -> None:
        """Remove a request if it is in the queue."""
        if held not in self._held:
            return
        del self._held[held]
        if held.timer is not None:
            held.timer.cancel()
        if self._idle is not None and not self._held and not self._idle.done():
            self._idle.set_result(None)

    def fail_all(self, error: NereidError) -> None:
        """Fail all held requests with this error."""
        for held in self:
            self._fail_request(held, error)

    async def idle(self) -> None:
        """Wait until no request is held. Only one task may wait."""
        if self._held:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _fail_request(self, held: HeldRequest, error: NereidError) -> None:
        self.remove_request(held)
        held.on_failed(held, error)
        held.on_response(InferResponse(held.request.id, error=error_status_of(error)))
