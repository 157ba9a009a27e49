"""The requests under way: a table of what was sent to the scheduler and not yet answered.

Every request that is taken in is answered until its last answer, which is the only one for most, by
the scheduler or by a failure told here; a cancelled one is answered never. While the link is down
requests wait and are sent again once it is back, except those that had an answer already, which
fail; past the reconnect limit all fail and new ones are refused at once. Runs in one event loop and
knows no protocol.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nereid.core.errors import INTERNAL_MESSAGE, Internal, InvalidArgument, NereidError, Unavailable
from nereid.core.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    InferRequest,
    InferResponse,
    error_status_of,
)
from nereid.observability.logging import about
from nereid.services.gateway.request_digest import Digester
from nereid.services.gateway.shared_tensors import SharedTensors
from nereid.shm.mappings import LostError
from nereid.shm.segments import THRESHOLD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.messages import FromScheduler, Notice, Release, ToScheduler

    OnResponse = Callable[[InferResponse], None]

_log = logging.getLogger(__name__)

_UNREACHABLE = "the scheduler cannot be reached"
# protobuf's and gRPC's 2 GiB, less what stands beside the tensors of one request.
_LARGEST_INLINE_BYTES = (1 << 31) - (16 << 20)
_TOO_LARGE = "{} bytes of tensors are more than a request may have that is not in shared memory"
_BROKE = "the link to the scheduler broke"
_RESPONSE_LOST = "the executor was lost with its answer"
_MOST_LOST = 2


class SchedulerLink(Protocol):
    """What is asked of a link (nereid.rpc.Link) towards the scheduler."""

    up: bool

    def send(self, item: ToScheduler) -> None:
        """Hand one item over; it leaves with the others of this loop turn."""

    def flush(self) -> None:
        """Let go now of what was handed over."""

    def close(self) -> None:
        """End the link for good."""


class OpenLink(Protocol):
    """Opens the link to the scheduler, over a wire or in memory."""

    def __call__(
        self,
        *,
        on_items: Callable[[list[FromScheduler]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> SchedulerLink:
        """Open it; on_up may be called before this returns, or later."""


@dataclass(frozen=True)
class Limits:
    """What bounds the table."""

    max_pending: int
    reconnect_limit_s: float
    # Of payloads; a request is taken in all the same while nothing else is under way.
    max_pending_bytes: int = 1 << 62


class Pending:
    """One request under way; whoever started it may cancel it."""

    __slots__ = ("_upstream", "lost", "on_response", "request", "responses", "size_bytes")

    def __init__(self, upstream: Upstream, request: InferRequest, on_response: OnResponse) -> None:
        self._upstream = upstream
        self.request = request
        self.on_response = on_response
        # Of the payloads; those in shared memory, which are bounded elsewhere, hardly count.
        self.size_bytes = sum(map(len, request.payloads))
        # How many it has had; there is more to come.
        self.responses = 0
        # How often its answer was lost with the executor that had made it.
        self.lost = 0

    def cancel(self) -> None:
        """The client is gone: no answer will be delivered. Harmless after the answer."""
        self._upstream.cancel(self.request.id)

    def set_flow(self, *, paused: bool) -> None:
        """The client cannot keep up with the answers, or it can again. Harmless after the last."""
        self._upstream.set_flow(self.request.id, paused=paused)


class Upstream:
    """The owner of the table and of the link."""

    def __init__(
        self, open_link: OpenLink, limits: Limits, shared_tensors: SharedTensors | None = None
    ) -> None:
        self.shared_tensors = SharedTensors(0) if shared_tensors is None else shared_tensors
        self._open_link = open_link
        self._limits = limits
        self._pending: dict[int, Pending] = {}
        self._pending_bytes = 0
        self._last_id = 0
        self._link: SchedulerLink | None = None
        self._up = False
        # Set once the link has been down for too long, until it is back.
        self._lost = False
        self._give_up: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        # What the scheduler says of the mesh and of no request.
        self.on_notice: Callable[[Notice], None] = _ignore
        # None: no model's requests want a digest.
        self._digester: Digester | None = None

    @property
    def up(self) -> bool:
        """Whether the scheduler is linked at this moment."""
        return self._up

    @property
    def pending(self) -> int:
        """How many requests are under way."""
        return len(self._pending)

    def start(self) -> None:
        """Open the link; call from the event loop."""
        self._watch()
        self.shared_tensors.start(self._release)
        self._link = self._open_link(
            on_items=self._on_responses, on_up=self._on_up, on_down=self._on_down
        )
        if self._up:
            # It came up while it was being opened: _on_up could not send yet.
            self._send_all()

    def submit(self, request: InferRequest, on_response: OnResponse) -> Pending:
        """Send request on its way; on_answer is called for each answer until one without `more`,
        possibly before this returns.
        """
        self._last_id += 1
        request.id = self._last_id
        pending = Pending(self, request, on_response)
        if pending.size_bytes >= THRESHOLD_BYTES:
            self.shared_tensors.stage(request)
            pending.size_bytes = sum(map(len, request.payloads))
            if pending.size_bytes > _LARGEST_INLINE_BYTES and request.lease is None:
                # A frame that its receiver cannot take would break the link of everybody.
                error = InvalidArgument(_TOO_LARGE.format(pending.size_bytes))
                _deliver(pending, _failure(request.id, error))
                return pending
        if self._lost:
            _deliver(pending, _failure(request.id, Unavailable(_UNREACHABLE)))
            return pending
        if len(self._pending) >= self._limits.max_pending:
            full = f"Exceeds maximum queue size: {len(self._pending)} requests are under way"
            _deliver(pending, _failure(request.id, Unavailable(full)))
            return pending
        pending_bytes = self._pending_bytes + pending.size_bytes
        if pending_bytes > self._limits.max_pending_bytes and self._pending:
            full = f"Exceeds maximum queue size: {self._pending_bytes} bytes are under way"
            _deliver(pending, _failure(request.id, Unavailable(full)))
            return pending
        self._pending_bytes = pending_bytes
        self._pending[request.id] = pending
        if self._digester is not None:
            request.digest = self._digester.digest(request)
        if request.lease is not None and not self.shared_tensors.shared:
            self.shared_tensors.bring_in(request)
        if self._up and self._link is not None:
            self._link.send(request)
            if len(self._pending) == 1:
                # The mesh is at rest: there is nothing that this one could share a frame with.
                self._link.flush()
        return pending

    def cancel(self, request_id: int) -> None:
        """Forget a request, and let the scheduler forget it."""
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return
        self._pending_bytes -= pending.size_bytes
        # Whoever else knows the request, in this process, may do so for a while yet.
        pending.request.lease = None
        if self._up and self._link is not None:
            self._link.send(Cancel(request_id))
        self._check_idle()

    def set_flow(self, request_id: int, *, paused: bool) -> None:
        """Let the model hear whether the client keeps up."""
        if request_id in self._pending and self._up and self._link is not None:
            self._link.send(FlowControl(request_id, paused))

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nothing is under way; False when the time ran out first."""
        if not self._pending:
            return True
        self._idle = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._idle, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._idle = None
        return True

    def close(self, reason: NereidError) -> None:
        """End the link; what is still under way fails with reason."""
        self._lost = True
        self._unwatch()
        self.shared_tensors.close()
        if self._link is not None:
            self._link.close()
        self._up = False
        self._fail_all(reason)

    def _on_up(self) -> None:
        if self._up:
            return
        self._up = True
        self._lost = False
        self._unwatch()
        if self._link is not None:
            self._send_all()

    def _send_all(self) -> None:
        if self._pending:
            _log.info("the scheduler is linked; %d requests waited for it", len(self._pending))
        if self._link is not None:
            for pending in self._pending.values():
                if pending.request.lease is not None:
                    # This scheduler may be another one.
                    self.shared_tensors.bring_in(pending.request)
                self._link.send(pending.request)

    def _on_down(self) -> None:
        if not self._up:
            return
        self._up = self.shared_tensors.shared = False
        self._fail_begun()
        _log.warning("the link to the scheduler broke; %d requests wait", len(self._pending))
        self._watch()

    def _fail_begun(self) -> None:
        """Those with an answer cannot be asked again: the client would get the same twice."""
        for pending in [each for each in self._pending.values() if each.responses]:
            del self._pending[pending.request.id]
            self._pending_bytes -= pending.size_bytes
            text = f"{_BROKE}, {pending.responses} responses into the request"
            _deliver(pending, _failure(pending.request.id, Unavailable(text, accepted=True)))
        self._check_idle()

    def _watch(self) -> None:
        self._unwatch()
        loop = asyncio.get_running_loop()
        self._give_up = loop.call_later(self._limits.reconnect_limit_s, self._on_lost)

    def _unwatch(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _on_lost(self) -> None:
        self._give_up = None
        self._lost = True
        _log.error("%s; %d requests fail", _UNREACHABLE, len(self._pending))
        self._fail_all(Unavailable(_UNREACHABLE))

    def _fail_all(self, reason: NereidError) -> None:
        failed, self._pending = self._pending, {}
        self._pending_bytes = 0
        for pending in failed.values():
            _deliver(pending, _failure(pending.request.id, reason))
        self._check_idle()

    def _on_responses(self, responses: Iterable[FromScheduler]) -> None:
        table = self._pending
        for response in responses:
            pending = table.pop(response.id, None)
            if pending is not None:
                # No request has the id 0.
                if response.more:  # type: ignore[union-attr]
                    table[response.id] = pending
                    pending.responses += 1
                else:
                    self._pending_bytes -= pending.size_bytes
                if response.segment_name or pending.request.lease is not None:  # type: ignore[union-attr]
                    self._deliver_shared(pending, response)  # type: ignore[arg-type]
                else:
                    _deliver(pending, response)  # type: ignore[arg-type]
            elif isinstance(response, CachedModels):
                self._digester = Digester(response.names) if response.names else None
                domain = self.shared_tensors.domain
                self.shared_tensors.shared = bool(domain) and response.memory_domain == domain
            elif not isinstance(response, InferResponse):
                self.on_notice(response)
            elif response.segment_name:
                # Cancelled in the meantime, its answer has no taker.
                self.shared_tensors.give_back(response.segment_name)
        if self._idle is not None:
            self._check_idle()

    def _deliver_shared(self, pending: Pending, response: InferResponse) -> None:
        """Deliver an answer that lies in shared memory, or whose request does."""
        request = pending.request
        if response.segment_name:
            try:
                self.shared_tensors.open(response)
            except LostError as error:
                self.shared_tensors.give_back(response.segment_name)
                self._lose(pending, error)
                return
        if request.lease is not None and not response.more:
            if response.error is None and not pending.responses:
                # Else it may be that some executor is still at it.
                request.lease.free()
            request.lease = None
            request.payloads = []
        _deliver(pending, response)

    def _lose(self, pending: Pending, error: LostError) -> None:
        """The executor died between its answer and our look at it: ask again, if that may be."""
        request = pending.request
        pending.lost += 1
        known = about(request.request_id, request.trace_context)
        _log.warning("an answer is lost: %s", error, extra=known)
        if pending.responses or pending.lost > _MOST_LOST:
            self.cancel(request.id)  # there may be more to come
            _deliver(pending, _failure(request.id, Unavailable(_RESPONSE_LOST, accepted=True)))
            return
        self._pending[request.id] = pending
        self._pending_bytes += pending.size_bytes
        if self._up and self._link is not None:
            self._link.send(request)

    def _release(self, release: Release) -> None:
        if self._up and self._link is not None:
            self._link.send(release)

    def _check_idle(self) -> None:
        if self._idle is not None and not self._pending and not self._idle.done():
            self._idle.set_result(None)


def _ignore(_notice: Notice) -> None:
    pass


def _failure(request_id: int, error: NereidError) -> InferResponse:
    return InferResponse(request_id, error=error_status_of(error))


def _deliver(pending: Pending, response: InferResponse) -> None:
    """One taker's failure must not keep the others from their answers."""
    try:
        pending.on_response(response)
    except Exception:
        request = pending.request
        known = about(request.request_id, request.trace_context)
        _log.exception("an answer could not be delivered", extra=known)
        if response.error is None:
            error_status = ErrorStatus(Internal.code, INTERNAL_MESSAGE)
            _deliver(pending, InferResponse(response.id, error=error_status, more=response.more))
