"""The client of the schedulers: a link to each, and each request to the one that has its model.

A request is sent again if the link that it went over breaks, or if its scheduler returns it because
it shuts down or another scheduler has its model now. A request waits while no scheduler has the
model, up to the reconnect limit. It gets all responses up to the last one, and none of them twice;
once it is cancelled it gets none. Knows neither services nor the protocols of clients.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Unavailable
from nereid.core.retry_after import DEFAULT_MS
from nereid.core.wire.messages import CachedModels, Ownership
from nereid.mesh_routing.control_calls import UNREACHABLE, unreachable
from nereid.mesh_routing.router.pending_requests import PendingRequests, ignore_end
from nereid.mesh_routing.router.route import Route
from nereid.mesh_routing.table.notice_merge import NoticeMerge
from nereid.mesh_routing.table.routing_table import RoutingTable
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferRequest, Notice
    from nereid.mesh_routing.router.pending_requests import OnEnd, PendingRequest, TensorSharing
    from nereid.mesh_routing.router.route import Clock, Schedulers, Timer

_log = logging.getLogger(__name__)

NO_OWNER: Final = "no scheduler serves the model at present"
# Maximum number of returns of a request. Each time another scheduler said that it has the model; if
# it happens more often, schedulers disagree.
_MAX_RETURNS: Final = 16
_CACHED_HEADS: Final = 4096
_MAX_CACHED_HEAD_BYTES: Final = 8192


class MeshRouter:
    """Owner of the links and of the table of pending requests.

    Sends new requests, and sends requests again.
    """

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        schedulers: Schedulers,
        tensors: TensorSharing,
        *,
        reconnect_limit_s: float | None,
        on_notice: Callable[[Notice], None] | None = None,
        clock: Clock | None = None,
        on_end: OnEnd = ignore_end,
        on_link_lost: Callable[[str], None] | None = None,
    ) -> None:
        """Create a router without links; see open().

        reconnect_limit_s: maximum time for which a request waits for a scheduler that has its
            model, and for which new requests are accepted while no scheduler is connected. With
            None requests fail with their link, and new ones wait for the next link; that a
            scheduler shuts down changes nothing.
        on_end: like that of PendingRequests.
        on_link_lost: called with the text of the scheduler whose link broke.
        """
        self.pending = PendingRequests(tensors, self, on_end)
        self._on_link_lost = on_link_lost
        self._tensors = tensors
        self._schedulers = schedulers
        self._on_notice = on_notice
        self._limit_s = reconnect_limit_s
        self._clock: Clock = asyncio.get_running_loop() if clock is None else clock
        self._opened = False
        # Number of connected schedulers.
        self.links_up = 0
        self._routes: dict[str, Route] = {}
        self._table = RoutingTable[Route]()
        self._notices = NoticeMerge[Route]()
        self._by_head = BoundedCache[bytes, Route](_CACHED_HEADS, _MAX_CACHED_HEAD_BYTES)
        # State of the frame that is being read: whether requests may go elsewhere after it, and the
        # requests that its scheduler returns.
        self._table_changed = False
        self._returned: list[PendingRequest] = []
        # Held requests by id, in the order of held_until.
        self._held: dict[int, PendingRequest] = {}
        self._held_timer: Timer | None = None
        self._closed = False
        # True if no scheduler has been connected for longer than the limit, or if this is closed.
        self._unreachable = False
        self._alone_timer: Timer | None = None

    def live_addresses(self) -> list[str]:
        """Return the connected schedulers' addresses; those that are shutting down come last."""
        return [route.address for route in self._table.live()]

    def open(self) -> None:
        """Open the links, unless they are open or were closed; call from the event loop."""
        if not self._opened and not self._closed:
            self._opened = True
            self._start_alone_timer()
            self._schedulers.watch(self._set_addresses, self.live_addresses)

    def close(self, reason: NereidError | None = None) -> None:
        """End the links; pending requests fail with the reason, new ones are refused."""
        self._closed = self._unreachable = True
        self.pending.set_only_route(None)
        self.links_up = 0
        routes, self._routes = self._routes, {}
        for timer in (
            self._alone_timer,
            self._held_timer,
            *(route.timer for route in routes.values()),
        ):
            if timer is not None:
                timer.cancel()
        self._alone_timer = self._held_timer = None
        self._held.clear()
        for route in routes.values():
            route.up = False
            route.close()
        self.pending.fail_all(unreachable() if reason is None else reason)

    # --- the links ------------------------------------------------------------------------------

    def _set_addresses(self, addresses: list[str]) -> None:
        """Open links to new addresses, and retire those whose address is gone.

        A retired link is kept while it is up: its scheduler may be finishing what it accepted.
        """
        if self._closed:
            return
        for route in list(self._routes.values()):
            route.retired = route.address not in addresses
            if route.retired and not route.up:
                self._remove(route)
        for address in addresses:
            if address not in self._routes:
                open_link = self._schedulers.open_link(address)
                route = Route(address, open_link, self.pending.on_items, self._on_down)
                self._routes[address] = route
                self._table.add(route)
                self._forget_places()

    def on_frame_end(self, link: Route) -> None:
        """Handle announcements and returned requests after all items of their frame."""
        # Compare with the announcements before this frame: the frame's items have no order, and the
        # requests that it returns may have been returned before the announcement that it brings.
        announcements = link.announcements
        link.announcements += link.unread_announcements
        link.unread_announcements = 0
        if self._table_changed:
            self._table_changed = False
            self._on_table_changed()
        # The same frame may have named the schedulers that have the requests' models now.
        returned, self._returned = self._returned, []
        for pending in returned:
            if pending.request.id in self.pending.requests:
                self._on_moved(link, pending, announcements)

    def _on_down(self, route: Route) -> None:
        """Handle a broken link: requests sent over it without a response are sent again."""
        if not route.up:
            return
        self._on_disconnected(route)
        if self._on_link_lost is not None:
            self._on_link_lost(str(route))
        unfinished = self.pending.on_link_down(route)
        for pending in unfinished:
            pending.request.resent = True
            pending.route = None
        if self._limit_s is None:
            for pending in unfinished:
                self.pending.fail(pending, unreachable())
            self.pending.check_drained()
            return
        for pending in self._held.values():
            returned_by = pending.attempts.returned_by
            if returned_by is not None and returned_by[0] is route:
                # The scheduler may have the model when it comes back.
                pending.attempts.returned_by = None
        text = "the link to %s broke; %d requests are sent again, or wait for a scheduler"
        _log.warning(text, route, len(unfinished))
        for pending in unfinished:
            self._dispatch(pending)
        if route.retired:
            self._remove(route)

    def _on_disconnected(self, route: Route) -> None:
        """Withdraw everything that a scheduler had announced."""
        route.up = route.shares = False
        route.domain = ""
        self.links_up -= 1
        self._share_tensors()
        self._table.on_down(route)
        self._forget_places()
        self._forward(self._notices.on_down(route))
        if self._limit_s is not None:
            limit = self._clock.time() + self._limit_s
            route.timer = self._clock.call_at(limit, lambda: self._on_lost(route))
            if not self.links_up:
                self._start_alone_timer()

    def on_notice(self, notice: Notice, link: Route) -> None:
        """Handle a notice of a scheduler: its greeting, what it owns, or rules."""
        if self._closed:
            return
        if isinstance(notice, Ownership):
            if notice.leaving and self._limit_s is None:
                return
            link.unread_announcements += 1
            self._table.on_ownership(link, notice)
            self._table_changed = True
            self.pending.request_frame_end()
            return
        if isinstance(notice, CachedModels):
            self._on_greeting(link, notice)
        self._forward(self._notices.on_notice(link, notice))

    def take_back(self, pending: PendingRequest, link: Route) -> bool:
        """Take a request back that its scheduler returned, to dispatch it after the frame."""
        if self._limit_s is None:
            return False
        if pending.route is link:
            self._returned.append(pending)
            self.pending.request_frame_end()
        return True

    def _on_greeting(self, route: Route, greeting: CachedModels) -> None:
        """Handle the first item on a link that came up; it may be repeated."""
        route.domain = greeting.shm_namespace
        self._tensors.on_scheduler_domain(route.domain)
        route.shares = self._tensors.shared
        self._share_tensors()
        if route.up:
            return
        route.up = self._table_changed = True
        self.pending.request_frame_end()
        self.links_up += 1
        self._unreachable = False
        self._table.on_up(route)
        self._stop_timers(route)
        waited = f"; {len(self._held)} requests waited" if self._held else ""
        _log.info("connected to %s%s", route, waited)

    def _share_tensors(self) -> None:
        """Put tensors into shared memory if any scheduler can pass them on."""
        domains = (route.domain for route in self._routes.values() if route.shares)
        self._tensors.on_scheduler_domain(next(domains, ""))

    def _remove(self, route: Route) -> None:
        if route.timer is not None:
            route.timer.cancel()
        route.close()
        self._schedulers.close_channel(route.address)
        del self._routes[route.address]
        self._table.remove(route)
        self._on_table_changed()

    def _on_lost(self, route: Route) -> None:
        """Forget a scheduler whose link has been down for longer than the limit."""
        route.timer = None
        self._table.forget(route)
        self._on_table_changed()

    def _start_alone_timer(self) -> None:
        if self._limit_s is not None:
            limit = self._clock.time() + self._limit_s
            self._alone_timer = self._clock.call_at(limit, self._on_alone_limit)

    def _stop_timers(self, route: Route) -> None:
        """Stop the timers that run while a route is down and while no scheduler is connected."""
        for timer in (route.timer, self._alone_timer):
            if timer is not None:
                timer.cancel()
        route.timer = self._alone_timer = None

    def _on_alone_limit(self) -> None:
        self._alone_timer = None
        self._unreachable = True
        _log.error("%s; failing %d pending requests", UNREACHABLE, len(self.pending.requests))
        self._held.clear()
        self.pending.fail_all(unreachable())

    def _forward(self, notice: Notice | None) -> None:
        if notice is not None and self._on_notice is not None:
            self._on_notice(notice)

    # --- where requests go ----------------------------------------------------------------------

    def _forget_places(self) -> None:
        self._by_head.clear()
        self.pending.set_only_route(None if self._closed else self._table.only())

    def place(self, pending: PendingRequest) -> Route | None:
        """Return the route of a new request; None if it is held or has failed."""
        if self._unreachable:
            self.pending.fail(pending, unreachable())
            return None
        route = self._find_route(pending.request)
        if route is None:
            self._hold(pending)
        return route

    def _find_route(self, request: InferRequest) -> Route | None:
        """Return the route of a new request; None if it has to wait."""
        head = request.head
        route = self._by_head.get(head)
        if route is None:
            model = _model_of(head)
            route = self._table.find(model)
            if route is not None:
                self._by_head.remember(head, route)
            elif request.caller:
                route = self._table.find_leaving(model)
        if route is not None and not route.shares:
            self._tensors.make_inline(request)
        return route

    def _on_table_changed(self) -> None:
        self._forget_places()
        # Dispatch in the order of arrival: requests of a sequence may be among them.
        for request_id in sorted(self._held):
            if request_id in self.pending.requests:
                self._dispatch(self._held[request_id])
            else:
                # The scheduler that returned the request has responded to it as well.
                del self._held[request_id]

    def _on_moved(self, route: Route, pending: PendingRequest, announcements: int) -> None:
        """Dispatch a request anew that a scheduler returned before it began to run."""
        pending.route = None
        attempts = pending.attempts
        attempts.returns += 1
        attempts.returned_by = route, announcements
        if attempts.returns > _MAX_RETURNS:
            self.pending.fail(pending, Unavailable(NO_OWNER, retry_after_ms=DEFAULT_MS))
            self.pending.check_drained()
        else:
            self._dispatch(pending)

    def _dispatch(self, pending: PendingRequest) -> None:
        """Send a request that no scheduler has, or hold it."""
        request = pending.request
        model = _model_of(request.head)
        returned_by = pending.attempts.returned_by
        # If the request was returned, another scheduler has the model, and is going to name it.
        route = self._table.find(model) if returned_by is None else self._table.owner(model)
        if route is None and request.caller:
            route = self._table.find_leaving(model)
        if route is not None and (route, route.announcements) == returned_by:
            route = None
        if route is None:
            self._hold(pending)
            return
        self._held.pop(request.id, None)
        pending.route = route
        if not route.shares:
            # The request's tensors may have been put into shared memory for another scheduler.
            self._tensors.make_inline(request)
        route.send(request)

    def send_again(self, pending: PendingRequest) -> None:
        """Send a request again whose response was lost."""
        pending.route = None
        self._dispatch(pending)

    def drop_held(self, pending: PendingRequest) -> None:
        """Stop holding a request that was cancelled."""
        self._held.pop(pending.request.id, None)

    def _hold(self, pending: PendingRequest) -> None:
        if pending.request.id in self._held:
            return
        self._held[pending.request.id] = pending
        if self._limit_s is not None:
            held_until = pending.attempts.held_until = self._clock.time() + self._limit_s
            if self._held_timer is None:
                self._held_timer = self._clock.call_at(held_until, self._on_held_limit)

    def _on_held_limit(self) -> None:
        """Fail the requests that have been held for too long."""
        self._held_timer = None
        now = self._clock.time()
        if self._limit_s is not None and self._table.is_lone:
            # The only scheduler is shutting down: requests wait for its end, and then for the next
            # one.
            if self._held:
                self._held_timer = self._clock.call_at(now + self._limit_s, self._on_held_limit)
            return
        for pending in list(self._held.values()):
            held_until = pending.attempts.held_until
            if held_until > now:
                self._held_timer = self._clock.call_at(held_until, self._on_held_limit)
                break
            del self._held[pending.request.id]
            self.pending.fail(pending, Unavailable(NO_OWNER, retry_after_ms=DEFAULT_MS))
        self.pending.check_drained()


def _model_of(head: bytes) -> str:
    """Return the model that a head names; "" for an invalid head, which any scheduler refuses."""
    try:
        return kserve_pb2.ModelInferRequest.FromString(head).model_name
    except DecodeError:
        return ""
