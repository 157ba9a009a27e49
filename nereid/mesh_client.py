"""A client of the scheduler: sends inference requests over one link, and keeps those that are
pending.

Each request gets its responses until the last one, which is the only one for most; a cancelled
request gets none. What happens to pending requests when the link breaks is the owner's choice:
they fail, or wait up to a limit for the link to come back and are sent again. Runs in one event
loop; knows neither services nor the protocols of clients.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid import rpc
from nereid.control_calls import UNREACHABLE, unreachable
from nereid.core.codecs import RequestCodec, ResponseCodec
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, Unavailable
from nereid.core.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    InferRequest,
    InferResponse,
    Release,
    error_status_of,
)
from nereid.core.methods import INFER_PATH, SHM_NAMESPACE_KEY
from nereid.core.retry_after import DEFAULT_MS
from nereid.observability.logging import request_log_extra
from nereid.shm.mappings import SegmentLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import FromScheduler, Notice, ToScheduler

    OnResponse = Callable[[InferResponse], None]

_log = logging.getLogger(__name__)

_LINK_BROKE: Final = "the link to the scheduler broke"
# A request is sent again at most this often because its response was lost with an executor.
_MAX_LOST_RESPONSES: Final = 2


class SchedulerLink(Protocol):
    """What is needed of a link (nereid.rpc.Link) to the scheduler."""

    up: bool

    def send(self, item: ToScheduler) -> None:
        """Enqueue an item; it is sent with the others of this turn of the event loop."""

    def send_now(self, item: ToScheduler) -> None:
        """Send an item and what is enqueued at once."""

    def close(self) -> None:
        """End the link for good."""


class OpenLink(Protocol):
    """Opens a link to the scheduler, over a channel or in memory."""

    def __call__(
        self,
        *,
        on_items: Callable[[list[FromScheduler]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> SchedulerLink:
        """Open it; on_up may be called before this returns."""


class TensorSharing(Protocol):
    """How this process shares tensors with the mesh."""

    # Whether the scheduler is known to share memory with this process.
    shared: bool

    def on_scheduler_domain(self, domain: str) -> None:
        """The scheduler shares memory of this domain; empty: it shares none, or is disconnected."""

    def make_inline(self, request: InferRequest) -> None:
        """Replace a request's references to shared memory by bytes."""

    def open_response(self, response: InferResponse) -> None:
        """Open the segment of a response; raises SegmentLostError."""

    def lost_response(self, response: InferResponse) -> InferResponse:
        """What to deliver in place of a response whose segment is lost for good."""


class PendingRequest:
    """A request that was sent, as its sender sees it."""

    __slots__ = ("_client", "lost_responses", "on_response", "request", "responses", "size_bytes")

    def __init__(
        self, client: MeshClient, request: InferRequest, on_response: OnResponse, size_bytes: int
    ) -> None:
        self._client = client
        self.request = request
        self.on_response = on_response
        self.size_bytes = size_bytes
        # Responses delivered, of those with `more`.
        self.responses = 0
        # Responses that could not be opened, because their executor had died.
        self.lost_responses = 0

    def cancel(self) -> None:
        """Deliver no more responses. Does nothing after the last one."""
        self._client.cancel(self.request.id)

    def set_flow(self, *, paused: bool) -> None:
        """Pause the model, or let it go on. Does nothing after the last response."""
        self._client.set_flow(self.request.id, paused=paused)


class MeshClient:
    """The owner of the link and of the table of pending requests.

    reconnect_limit_s: how long requests wait for the link to come back; past it they fail, and new
    ones are refused at once. None: pending requests fail as soon as the link breaks.
    await_greeting: requests are sent once the scheduler has said which memory it shares; otherwise
    as soon as the link is up.
    """

    def __init__(
        self,
        open_link: OpenLink,
        tensors: TensorSharing,
        *,
        on_notice: Callable[[Notice], None] | None = None,
        reconnect_limit_s: float | None = None,
        await_greeting: bool = False,
    ) -> None:
        self._open_link = open_link
        self._tensors = tensors
        self._on_notice = on_notice
        self._reconnect_limit_s = reconnect_limit_s
        self._await_greeting = await_greeting
        # Requests can be sent.
        self.up = False
        # Of the payloads of pending requests, as their senders counted them.
        self.pending_bytes = 0
        # Those pending, by id.
        self.requests: dict[int, PendingRequest] = {}
        # Begins at random: a request's id is its own in the whole mesh, also when it is sent again.
        self._last_id = int.from_bytes(os.urandom(5), "little") << 20
        self._link: SchedulerLink | None = None
        self._closed = False
        # The link has been down for longer than the limit, or is closed.
        self._unreachable = False
        self._reconnect_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def last_id(self) -> int:
        """Of the last request, sent or refused. Ids are consecutive."""
        return self._last_id

    def open(self) -> None:
        """Open the link, unless it is open or was closed; call from the event loop."""
        if self._link is not None or self._closed:
            return
        self._start_reconnect_timer()
        self._link = self._open_link(
            on_items=self._on_items, on_up=self._on_up, on_down=self._on_down
        )
        if self.up:
            # It came up while it was being opened: _on_up could not send yet.
            self._send_pending()

    def infer(
        self, request: InferRequest, on_response: OnResponse, size_bytes: int = 0
    ) -> PendingRequest:
        """Send a request; on_response is called for each response until one without `more`,
        possibly before this returns.
        """
        if self._unreachable:
            return self.refuse(request, on_response, unreachable())
        request.id = self._last_id = self._last_id + 1
        pending = PendingRequest(self, request, on_response, size_bytes)
        self.pending_bytes += size_bytes
        self.requests[request.id] = pending
        if self.up and self._link is not None:
            if len(self.requests) == 1:
                # There is no other request that this one could share a frame with.
                self._link.send_now(request)
            else:
                self._link.send(request)
        return pending

    def refuse(
        self, request: InferRequest, on_response: OnResponse, error: NereidError
    ) -> PendingRequest:
        """Deliver an error in place of sending the request."""
        request.id = self._last_id = self._last_id + 1
        pending = PendingRequest(self, request, on_response, 0)
        _deliver(pending, _failure(request.id, error))
        return pending

    def cancel(self, request_id: int) -> None:
        """Forget a request, and have the scheduler cancel it."""
        pending = self.requests.pop(request_id, None)
        if pending is None:
            return
        self.pending_bytes -= pending.size_bytes
        # Others in this process may hold the request for longer.
        pending.request.lease = None
        if self.up and self._link is not None:
            self._link.send(Cancel(request_id))
        self._check_drained()

    def set_flow(self, request_id: int, *, paused: bool) -> None:
        """Have the scheduler pause or resume the model of a request."""
        if request_id in self.requests and self.up and self._link is not None:
            self._link.send(FlowControl(request_id, paused))

    def release_segments(self, segment_names: tuple[str, ...]) -> None:
        """Give segments of responses back to the executors that own them."""
        if self.up and self._link is not None:
            self._link.send(Release(segment_names))

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no request is pending; False when the time ran out first."""
        if not self.requests:
            return True
        self._drained = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._drained, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._drained = None
        return True

    def close(self, reason: NereidError | None = None) -> None:
        """End the link; pending requests fail with the reason, new ones are refused."""
        self._closed = self._unreachable = True
        self._stop_reconnect_timer()
        if self._link is not None:
            self._link.close()
        self.up = False
        self._fail_all(unreachable() if reason is None else reason)

    # --- the link -------------------------------------------------------------------------------

    def _on_up(self) -> None:
        if not self.up and not self._await_greeting:
            self._begin_sending()

    def _on_greeting(self, greeting: CachedModels) -> None:
        """The first item on a link that came up; it may be repeated."""
        self._tensors.on_scheduler_domain(greeting.shm_namespace)
        if not self.up and self._await_greeting:
            self._begin_sending()

    def _begin_sending(self) -> None:
        self.up = True
        self._unreachable = False
        self._stop_reconnect_timer()
        if self._link is not None:
            self._send_pending()

    def _send_pending(self) -> None:
        if self.requests:
            _log.info("connected to the scheduler; sending %d pending requests", len(self.requests))
        if self._link is not None:
            for pending in self.requests.values():
                if not self._tensors.shared:
                    # It may be another scheduler than before.
                    self._tensors.make_inline(pending.request)
                self._link.send(pending.request)

    def _on_down(self) -> None:
        self.up = False
        self._tensors.on_scheduler_domain("")
        if self._reconnect_limit_s is None:
            self._fail_all(unreachable())
            return
        self._fail_begun()
        for pending in self.requests.values():
            pending.request.resent = True
        _log.warning("%s; %d requests wait to be sent again", _LINK_BROKE, len(self.requests))
        self._start_reconnect_timer()

    def _fail_begun(self) -> None:
        """Requests with a response cannot be sent again: their clients would get it twice."""
        for pending in [each for each in self.requests.values() if each.responses]:
            del self.requests[pending.request.id]
            self.pending_bytes -= pending.size_bytes
            text = f"{_LINK_BROKE}, {pending.responses} responses into the request"
            error = Unavailable(text, accepted=True, retry_after_ms=DEFAULT_MS)
            _deliver(pending, _failure(pending.request.id, error))
        self._check_drained()

    def _start_reconnect_timer(self) -> None:
        self._stop_reconnect_timer()
        if self._reconnect_limit_s is not None:
            loop = asyncio.get_running_loop()
            self._reconnect_timer = loop.call_later(
                self._reconnect_limit_s, self._on_reconnect_limit
            )

    def _stop_reconnect_timer(self) -> None:
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
            self._reconnect_timer = None

    def _on_reconnect_limit(self) -> None:
        self._reconnect_timer = None
        self._unreachable = True
        _log.error("%s; failing %d pending requests", UNREACHABLE, len(self.requests))
        self._fail_all(unreachable())

    def _fail_all(self, reason: NereidError) -> None:
        failed, self.requests = self.requests, {}
        self.pending_bytes = 0
        for pending in failed.values():
            _deliver(pending, _failure(pending.request.id, reason))
        self._check_drained()

    def _check_drained(self) -> None:
        if self._drained is not None and not self.requests and not self._drained.done():
            self._drained.set_result(None)

    # --- responses ------------------------------------------------------------------------------

    def _on_items(self, items: list[FromScheduler]) -> None:
        table = self.requests
        for item in items:
            pending = table.pop(item.id, None)
            if pending is not None:
                # It is a response: notices have the id 0, which no request has.
                response: InferResponse = item  # type: ignore[assignment]
                if response.more:
                    table[response.id] = pending
                    pending.responses += 1
                else:
                    self.pending_bytes -= pending.size_bytes
                if response.segment_name or pending.request.lease is not None:
                    self._deliver_shared(pending, response)
                else:
                    _deliver(pending, response)
            elif not isinstance(item, InferResponse):
                if isinstance(item, CachedModels):
                    self._on_greeting(item)
                if self._on_notice is not None:
                    self._on_notice(item)
            elif item.segment_name:
                # Its request was cancelled.
                self.release_segments((item.segment_name,))
        if self._drained is not None:
            self._check_drained()

    def _deliver_shared(self, pending: PendingRequest, response: InferResponse) -> None:
        """Deliver a response that is in shared memory, or whose request is."""
        request = pending.request
        if response.segment_name:
            try:
                self._tensors.open_response(response)
            except SegmentLostError as error:
                if self._retry_lost(pending, response, error):
                    return
                self.cancel(request.id)  # there may be more to come
                response = self._tensors.lost_response(response)
        if request.lease is not None and not response.more:
            if response.error is None and not pending.responses:
                # Otherwise an executor may still be reading it.
                request.lease.free()
            request.lease = None
            request.payloads = []
        _deliver(pending, response)

    def _retry_lost(
        self, pending: PendingRequest, response: InferResponse, error: SegmentLostError
    ) -> bool:
        """Send a request again whose executor died before its response was opened."""
        request = pending.request
        pending.lost_responses += 1
        extra = request_log_extra(request.request_id, request.trace_context)
        _log.warning("response lost with its executor: %s", error, extra=extra)
        if pending.responses or pending.lost_responses > _MAX_LOST_RESPONSES:
            return False
        self.release_segments((response.segment_name,))
        self.requests[request.id] = pending
        self.pending_bytes += pending.size_bytes
        request.resent = True
        if self.up and self._link is not None:
            self._link.send(request)
        return True


class _LinkCodec:
    """Requests to frames, frames to responses."""

    def __init__(self) -> None:
        requests = RequestCodec()
        self.size_bytes, self.encode = requests.size_bytes, requests.encode
        self.decode = ResponseCodec().decode


def dial_scheduler(channel: rpc.Channel, domain: str = "") -> OpenLink:
    """A link over a channel, which is dialled again for as long as it is open.

    domain: of the memory that this process shares (nereid.shm.segments.shm_namespace).
    """

    def open_link(**callbacks: Any) -> SchedulerLink:
        return rpc.dial_link(
            channel, INFER_PATH, _LinkCodec(), metadata=((SHM_NAMESPACE_KEY, domain),), **callbacks
        )

    return open_link


def _failure(request_id: int, error: NereidError) -> InferResponse:
    return InferResponse(request_id, error=error_status_of(error))


def _deliver(pending: PendingRequest, response: InferResponse) -> None:
    """Call on_response; if that fails, report an internal error to it, and go on with others."""
    try:
        pending.on_response(response)
    except Exception:
        request = pending.request
        extra = request_log_extra(request.request_id, request.trace_context)
        _log.exception("a response could not be delivered", extra=extra)
        if response.error is None:
            error_status = ErrorStatus(Internal.code, INTERNAL_MESSAGE)
            _deliver(pending, InferResponse(response.id, error=error_status, more=response.more))
