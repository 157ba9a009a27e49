"""Table of the requests that this process has sent to schedulers and that have not ended.

The router decides which link a request goes over. All of this runs in one event loop.
"""

# layout: not covered, links in integration tests reach the rest

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.core.errors import INTERNAL_MESSAGE, Internal, Unavailable
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
    OnEnd = Callable[[int], None]

_log = logging.getLogger(__name__)

# Maximum number of times that a request is sent again after its response was lost.
_MAX_LOST_RESPONSES: Final = 2


class TensorSharing(Protocol):
    """Sharing of tensors between this process and the mesh."""

    shared: bool

    def on_scheduler_domain(self, domain: str) -> None:
        """Set the domain of the scheduler's memory; empty if it shares none."""

    def make_inline(self, request: InferRequest) -> None:
        """Replace references to shared memory in a request by the bytes."""

    def open_response(self, response: InferResponse) -> None:
        """Open the segment of a response; raise SegmentLostError if it does not exist any more."""

    def lost_response(self, response: InferResponse) -> InferResponse:
        """Return the error to deliver in place of a response whose segment is lost."""


class PendingRequest:
    """A pending request, through which the sender can cancel it or pause its responses."""

    __slots__ = (
        "_client",
        "lost_responses",
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
        # `None` while the request waits for a scheduler.
        self.route = route
        # Number of delivered responses that had `more` set.
        self.responses = 0
        self.lost_responses = 0

    def cancel(self) -> None:
        """Cancel the request: no more responses are delivered. No-op after the last response."""
        self._client.cancel(self.request.id)

    def set_flow(self, *, paused: bool) -> None:
        """Pause the request's model, or let it continue. No-op after the last response."""
        self._client.set_flow(self.request.id, paused=paused)


class RequestRouter(Protocol):
    """Interface of the router, which decides where the requests of a table go."""

    def place(self, pending: PendingRequest) -> Route | None:
        """Return the route of a new request; None if the request waits or has failed."""

    def send_again(self, pending: PendingRequest) -> None:
        """Send a request again because its response was lost."""

    def take_back(self, pending: PendingRequest, link: Route) -> bool:
        """Accept a returned request. If this returns False, the client gets the error."""

    def on_notice(self, notice: Notice, link: Route) -> None:
        """Handle a notice that came over a link."""

    def on_frame_end(self, link: Route) -> None:
        """Handle the end of a frame for which request_frame_end() was called."""


class PendingRequests:
    """Table of pending requests. It delivers their responses."""

    def __init__(
        self, tensors: TensorSharing, router: RequestRouter, on_end: OnEnd | None = None
    ) -> None:
        """Create an empty table. on_end: called with the id of each sent request that has ended."""
        self._on_end = on_end
        self._tensors = tensors
        self._router = router
        # Route of all new requests; `None` if the router chooses a route for each.
        self._common_route: Route | None = None
        self.pending_bytes = 0
        self.requests: dict[int, PendingRequest] = {}
        # Ids begin at a random value, so that they are unique in the mesh.
        self.last_id = int.from_bytes(os.urandom(5), "little") << 20
        # Key: the segment of a response that is being read. Value: where the response came from.
        self._route_of_segment: dict[str, Route] = {}
        self._drained: asyncio.Future[None] | None = None
        self._frame_end_due = False

    def infer(
        self, request: InferRequest, on_response: OnResponse, size_bytes: int = 0
    ) -> PendingRequest:
        """Send a request; on_response gets each response up to the first without `more`.

        on_response may be called before this method returns.
        """
        route = self._common_route
        request_id = request.id = self.last_id = self.last_id + 1
        requests = self.requests
        pending = PendingRequest(self, request, on_response, size_bytes, route)
        self.pending_bytes += size_bytes
        requests[request_id] = pending
        if route is None:
            route = pending.route = self._router.place(pending)
            if route is None:
                return pending
        # If no other request is pending, none will share the frame.
        route.send(request, len(requests) == 1)
        return pending

    def cancel(self, request_id: int) -> None:
        """Forget a request, and tell the scheduler to cancel the request."""
        pending = self.requests.pop(request_id, None)
        if pending is None:
            return
        self.pending_bytes -= pending.size_bytes
        # Drop the lease now: other code may hold the request for longer.
        pending.request.lease = None
        if pending.route is not None:
            pending.route.send(Cancel(request_id))
        if self._on_end is not None:
            self._on_end(request_id)
        self.check_drained()

    def set_flow(self, request_id: int, *, paused: bool) -> None:
        """Tell the scheduler to pause or resume the model of a request."""
        pending = self.requests.get(request_id)
        if pending is not None and pending.route is not None:
            pending.route.send(FlowControl(request_id, paused))

    def release_segments(self, segment_names: tuple[str, ...]) -> None:
        """Give responses' segments back to executors, except after a broken link."""
        by_route: dict[Route, list[str]] = {}
        for segment_name in segment_names:
            route = self._route_of_segment.pop(segment_name, None)
            if route is not None:
                by_route.setdefault(route, []).append(segment_name)
        for route, names in by_route.items():
            route.send(Release(tuple(names)))

    def refuse(
        self, request: InferRequest, on_response: OnResponse, error: NereidError
    ) -> PendingRequest:
        """Deliver an error for a request that is not sent."""
        request.id = self.last_id = self.last_id + 1
        pending = PendingRequest(self, request, on_response, 0)
        _deliver(pending, _failure(request.id, error))
        return pending

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no request is pending; return False after `timeout_s` seconds."""
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

    def set_common_route(self, route: Route | None) -> bool:
        """Send all new requests over this route; return whether it is another one than before.

        With None, the router chooses a route for each.
        """
        changed = route is not self._common_route
        self._common_route = route
        return changed

    def waiting(self) -> list[PendingRequest]:
        """Return the requests that are at no scheduler, in the order of their arrival."""
        # Requests may belong to the same sequence.
        waiting = [number for number, each in self.requests.items() if each.route is None]
        return [self.requests[number] for number in sorted(waiting)]

    def request_frame_end(self) -> None:
        """Ask for a call of the router's on_frame_end() after the current frame."""
        self._frame_end_due = True

    def on_link_down(self, link: Route) -> list[PendingRequest]:
        """Mark and return the requests of a broken link that can be sent again.

        Requests that have had a response fail, because clients would get that response twice.
        """
        self._route_of_segment = {
            name: route for name, route in self._route_of_segment.items() if route is not link
        }
        lost = [pending for pending in self.requests.values() if pending.route is link]
        self._fail_begun(lost)
        unfinished = [pending for pending in lost if pending.request.id in self.requests]
        for pending in unfinished:
            pending.request.resent = True
            pending.route = None
        return unfinished

    def _fail_begun(self, lost: list[PendingRequest]) -> None:
        for pending in lost:
            if pending.responses:
                count = pending.responses
                text = f"the link to the scheduler broke, {count} responses into the request"
                self.fail(pending, Unavailable(text, accepted=True, retry_after_ms=DEFAULT_MS))
        self.check_drained()

    def fail(self, pending: PendingRequest, reason: NereidError) -> None:
        """Fail a request, unless it was cancelled or has ended meanwhile."""
        if self.requests.pop(pending.request.id, None) is not None:
            self.pending_bytes -= pending.size_bytes
            _deliver(pending, _failure(pending.request.id, reason))
            if self._on_end is not None:
                self._on_end(pending.request.id)

    def fail_all(self, reason: NereidError) -> None:
        """Fail all requests with this error."""
        # A callback may cancel other requests, so iterate over a copy.
        for pending in list(self.requests.values()):
            self.fail(pending, reason)
        self.check_drained()

    def check_drained(self) -> None:
        """Finish drain() if no request is left; call this after requests have failed."""
        if self._drained is not None and not self.requests and not self._drained.done():
            self._drained.set_result(None)

    def on_items(self, link: Route, items: list[Any]) -> None:  # noqa: C901 - hot path
        """Handle the responses and notices of one frame that came over a link."""
        table = self.requests
        on_end = self._on_end
        for item in items:
            if not isinstance(item, InferResponse):
                self._router.on_notice(item, link)
                continue
            pending = table.get(item.id)
            if pending is not None:
                del table[item.id]
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
                    on_end(item.id)
            elif item.segment_name:
                # The request was cancelled, so give the response's segment back.
                link.send(Release((item.segment_name,)))
        if self._frame_end_due:
            self._router.on_frame_end(link)
            self._frame_end_due = self._drained is not None
            self.check_drained()

    def _deliver_shared(
        self, pending: PendingRequest, response: InferResponse, link: Route
    ) -> bool:
        """Deliver a response with shared memory; return False if the request is sent again."""
        request = pending.request
        if response.segment_name:
            self._route_of_segment[response.segment_name] = link
            try:
                self._tensors.open_response(response)
            except SegmentLostError as error:
                if self._retry_lost(pending, response, error):
                    return False
                response = self._lose_response(pending, response)
            except Exception:
                extra = request_log_extra(request.request_id, request.trace_context)
                _log.exception("a response could not be opened", extra=extra)
                response = self._lose_response(pending, response)
        if request.lease is not None and not response.more:
            in_use = response.inputs_in_use or request.resent
            if response.error is None and not pending.responses and not in_use:
                # In any other case an executor may still read the segment.
                request.lease.free()
            request.lease = None
            request.payloads = []
        _deliver(pending, response)
        return True

    def _lose_response(self, pending: PendingRequest, response: InferResponse) -> InferResponse:
        """Return the error in place of a response, and cancel those that may follow."""
        self.cancel(pending.request.id)
        return self._tensors.lost_response(response)

    def _retry_lost(
        self, pending: PendingRequest, response: InferResponse, error: SegmentLostError
    ) -> bool:
        """Send a request again whose executor died before the response was opened."""
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
        pending.route = None
        self._router.send_again(pending)
        return True


def _failure(request_id: int, error: NereidError) -> InferResponse:
    return InferResponse(request_id, error=error_status_of(error))


def _deliver(pending: PendingRequest, response: InferResponse) -> None:
    """Call on_response. If it raises an exception, call it again with an internal error."""
    try:
        pending.on_response(response)
    except Exception:
        request = pending.request
        extra = request_log_extra(request.request_id, request.trace_context)
        _log.exception("a response could not be delivered", extra=extra)
        if response.error is None:
            error_status = ErrorStatus(Internal.code, INTERNAL_MESSAGE)
            _deliver(pending, InferResponse(response.id, error=error_status, more=response.more))
