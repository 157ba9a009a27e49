"""The requests that a client of the scheduler has sent, until each has its last response.

Numbers them, delivers responses, reads those that lie in shared memory, and waits for the last one
when the client drains; which link they go over nereid.mesh_routing decides. Runs in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.core.errors import INTERNAL_MESSAGE, Cancelled, Internal, Unavailable
from nereid.core.retry_after import DEFAULT_MS
from nereid.core.wire.messages import (
    Cancel,
    ErrorStatus,
    FlowControl,
    InferResponse,
    MovedResponse,
    Release,
    error_status_of,
)
from nereid.observability.logging import request_log_extra
from nereid.shm.mappings import SegmentLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferRequest, Notice
    from nereid.mesh_routing.router.route import Route

    OnResponse = Callable[[InferResponse], None]
    # A request, and its gRPC status code.
    OnEnd = Callable[["PendingRequest", int], None]

_log = logging.getLogger(__name__)

# A request is sent again at most this often because its response was lost with an executor.
_MAX_LOST_RESPONSES: Final = 2


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


@dataclass(slots=True)
class Attempts:
    """What kept a request from being served at once; most requests have none of this."""

    # Responses that could not be opened, because their executor had died.
    lost_responses: int = 0
    # How often a scheduler returned it.
    returns: int = 0
    # Who returned it last, while connected, and after how many announcements of theirs.
    returned_by: tuple[Route, int] | None = None
    # While it is held: a time of the clock.
    held_until: float = 0.0


class PendingRequest:
    """A request that was sent, as its sender sees it."""

    __slots__ = (
        "_attempts",
        "_client",
        "on_response",
        "request",
        "responses",
        "route",
        "size_bytes",
    )

    def __init__(
        self,
        client: PendingRequests,
        request: InferRequest,
        on_response: OnResponse,
        size_bytes: int,
        route: Route | None = None,
    ) -> None:
        self._client = client
        self.request = request
        self.on_response = on_response
        self.size_bytes = size_bytes
        # Where it was sent; None: it is held.
        self.route = route
        # Responses delivered, of those with `more`.
        self.responses = 0
        self._attempts: Attempts | None = None

    @property
    def attempts(self) -> Attempts:
        """What it has gone through, to be added to."""
        if self._attempts is None:
            self._attempts = Attempts()
        return self._attempts

    def cancel(self) -> None:
        """Deliver no more responses. Does nothing after the last one."""
        self._client.cancel(self.request.id)

    def set_flow(self, *, paused: bool) -> None:
        """Pause the model, or let it go on. Does nothing after the last response."""
        self._client.set_flow(self.request.id, paused=paused)


class RequestRouter(Protocol):
    """Decides where requests go, for their table."""

    def place(self, pending: PendingRequest) -> Route | None:
        """The route of a new request, if its model decides it; None: it is held, or has failed."""

    def send_again(self, pending: PendingRequest) -> None:
        """Send a request again whose response was lost."""

    def drop_held(self, pending: PendingRequest) -> None:
        """A request that is with no scheduler was cancelled."""

    def take_back(self, pending: PendingRequest, link: Route) -> bool:
        """A scheduler returned a request; False: its client gets the error."""

    def on_notice(self, notice: Notice, link: Route) -> None:
        """A notice came among the items of a link."""

    def on_frame_end(self, link: Route) -> None:
        """The items of a frame are read; called only if request_frame_end() was."""


class PendingRequests:
    """The table of pending requests, and the delivery of their responses."""

    def __init__(
        self, tensors: TensorSharing, router: RequestRouter, on_end: OnEnd | None = None
    ) -> None:
        """on_end: records when a request ended, by a response or otherwise."""
        self._on_end = on_end
        self._tensors = tensors
        self._router = router
        # Where every request goes at present; None: the router decides for each.
        self._only_route: Route | None = None
        # Of the payloads of pending requests, as their senders counted them.
        self.pending_bytes = 0
        # Those pending, by id.
        self.requests: dict[int, PendingRequest] = {}
        # Begins at random: a request's id is its own in the whole mesh, also when it is sent again.
        self.last_id = int.from_bytes(os.urandom(5), "little") << 20
        # Of the segments of responses that are still read: who lent them.
        self._lenders: dict[str, Route] = {}
        self._drained: asyncio.Future[None] | None = None
        # There is something to do once the items of a frame are read.
        self._frame_end_due = False

    def infer(
        self, request: InferRequest, on_response: OnResponse, size_bytes: int = 0
    ) -> PendingRequest:
        """Send a request; on_response is called for each response until one without `more`,
        possibly before this returns.
        """
        route = self._only_route
        request_id = request.id = self.last_id = self.last_id + 1
        requests = self.requests
        pending = PendingRequest(self, request, on_response, size_bytes, route)
        self.pending_bytes += size_bytes
        requests[request_id] = pending
        if route is None:
            route = pending.route = self._router.place(pending)
            if route is None:
                return pending
        if len(requests) == 1:
            # There is no other request that this one could share a frame with.
            route.send_now(request)
        else:
            route.send(request)
        return pending

    def cancel(self, request_id: int) -> None:
        """Forget a request, and have the scheduler cancel it."""
        pending = self.requests.pop(request_id, None)
        if pending is None:
            return
        self.pending_bytes -= pending.size_bytes
        # Others in this process may hold the request for longer.
        pending.request.lease = None
        if pending.route is None:
            self._router.drop_held(pending)
        else:
            pending.route.send(Cancel(request_id))
        if self._on_end is not None:
            self._on_end(pending, Cancelled.code)
        self.check_drained()

    def set_flow(self, request_id: int, *, paused: bool) -> None:
        """Have the scheduler pause or resume the model of a request."""
        pending = self.requests.get(request_id)
        if pending is not None and pending.route is not None:
            pending.route.send(FlowControl(request_id, paused))

    def release_segments(self, segment_names: tuple[str, ...]) -> None:
        """Give segments of responses back to the executors that own them. The schedulers of links
        that broke have done so.
        """
        by_lender: dict[Route, list[str]] = {}
        for segment_name in segment_names:
            lender = self._lenders.pop(segment_name, None)
            if lender is not None:
                by_lender.setdefault(lender, []).append(segment_name)
        for lender, names in by_lender.items():
            lender.send(Release(tuple(names)))

    def refuse(
        self, request: InferRequest, on_response: OnResponse, error: NereidError
    ) -> PendingRequest:
        """Deliver an error in place of sending the request."""
        request.id = self.last_id = self.last_id + 1
        pending = PendingRequest(self, request, on_response, 0)
        _deliver(pending, _failure(request.id, error))
        if self._on_end is not None:
            self._on_end(pending, error.code)
        return pending

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no request is pending; False when the time ran out first."""
        if not self.requests:
            return True
        self._drained = asyncio.get_running_loop().create_future()
        self._frame_end_due = True
        try:
            await asyncio.wait_for(self._drained, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._drained = None
        return True

    # --- for the router -------------------------------------------------------------------------

    def set_only_route(self, route: Route | None) -> None:
        """Send all new requests there; None: to the router, one by one."""
        self._only_route = route

    def request_frame_end(self) -> None:
        """Call on_frame_end once the items of the frame that is being read are."""
        self._frame_end_due = True

    def on_link_down(self, link: Route) -> list[PendingRequest]:
        """A link broke; returns its requests that can be sent again. The clients of those with a
        response would get it twice, and so they fail.
        """
        self._lenders = {name: each for name, each in self._lenders.items() if each is not link}
        lost = [each for each in self.requests.values() if each.route is link]
        self._fail_begun(lost)
        return [each for each in lost if each.request.id in self.requests]

    def _fail_begun(self, lost: list[PendingRequest]) -> None:
        for pending in lost:
            if pending.responses:
                count = pending.responses
                text = f"the link to the scheduler broke, {count} responses into the request"
                self.fail(pending, Unavailable(text, accepted=True, retry_after_ms=DEFAULT_MS))
        self.check_drained()

    def fail(self, pending: PendingRequest, reason: NereidError) -> None:
        """Fail a request, unless it was cancelled meanwhile."""
        if self.requests.pop(pending.request.id, None) is not None:
            self.pending_bytes -= pending.size_bytes
            _deliver(pending, _failure(pending.request.id, reason))
            if self._on_end is not None:
                self._on_end(pending, reason.code)

    def fail_all(self, reason: NereidError) -> None:
        """Fail all requests."""
        # One by one: a callback may cancel others, and be called for an item of a frame that has
        # more of them.
        for pending in list(self.requests.values()):
            self.fail(pending, reason)
        self.check_drained()

    def check_drained(self) -> None:
        """To be called after requests have ended otherwise than by a response."""
        if self._drained is not None and not self.requests and not self._drained.done():
            self._drained.set_result(None)

    # --- responses ------------------------------------------------------------------------------

    def on_items(self, link: Route, items: list[Any]) -> None:  # noqa: C901 - no further call
        """Responses and notices of one frame, which came over this link."""
        table = self.requests
        on_end = self._on_end
        for item in items:
            pending = table.get(item.id)
            if pending is not None:
                del table[item.id]
                # It is a response: notices have the id 0, which no request has.
                if (
                    item.error is not None
                    and isinstance(item, MovedResponse)
                    and self._router.take_back(pending, link)
                ):
                    table[item.id] = pending
                    continue
                if item.more:
                    table[item.id] = pending
                    pending.responses += 1
                else:
                    self.pending_bytes -= pending.size_bytes
                if item.segment_name or pending.request.lease is not None:
                    if not self._deliver_shared(pending, item, link):
                        continue
                else:
                    _deliver(pending, item)
                if on_end is not None and not item.more:
                    on_end(pending, 0 if item.error is None else item.error.code)
            elif not isinstance(item, InferResponse):
                self._router.on_notice(item, link)
            elif item.segment_name:
                # Its request was cancelled.
                link.send(Release((item.segment_name,)))
        if self._frame_end_due:
            self._router.on_frame_end(link)
            self._frame_end_due = self._drained is not None
            self.check_drained()

    def _deliver_shared(
        self, pending: PendingRequest, response: InferResponse, link: Route
    ) -> bool:
        """Deliver a response that is in shared memory, or whose request is; False: it is lost, and
        the request is sent again.
        """
        request = pending.request
        if response.segment_name:
            self._lenders[response.segment_name] = link
            try:
                self._tensors.open_response(response)
            except SegmentLostError as error:
                if self._retry_lost(pending, response, error):
                    return False
                self.cancel(request.id)  # there may be more to come
                response = self._tensors.lost_response(response)
        if request.lease is not None and not response.more:
            in_use = response.inputs_in_use or request.resent
            if response.error is None and not pending.responses and not in_use:
                # Otherwise an executor may still be reading it: of two runs the other one's.
                request.lease.free()
            request.lease = None
            request.payloads = []
        _deliver(pending, response)
        return True

    def _retry_lost(
        self, pending: PendingRequest, response: InferResponse, error: SegmentLostError
    ) -> bool:
        """Send a request again whose executor died before its response was opened."""
        request = pending.request
        attempts = pending.attempts
        attempts.lost_responses += 1
        extra = request_log_extra(request.request_id, request.trace_context)
        _log.warning("response lost with its executor: %s", error, extra=extra)
        if pending.responses or attempts.lost_responses > _MAX_LOST_RESPONSES:
            return False
        self.release_segments((response.segment_name,))
        self.requests[request.id] = pending
        self.pending_bytes += pending.size_bytes
        request.resent = True
        self._router.send_again(pending)
        return True


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
