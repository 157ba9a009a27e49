"""Client of the schedulers, which has a link to each and routes requests by their models.

The sender gets every response exactly once, and none after a cancellation. If no scheduler has the
model, the request waits up to the reconnect limit.
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
# If schedulers return a request more often, they disagree about its model, and it fails.
_MAX_RETURNS: Final = 16
_CACHED_HEADS: Final = 4096
_MAX_CACHED_HEAD_BYTES: Final = 8192


class MeshRouter:
    """Owner of the links and of the table of pending requests."""

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
        """Create a router without links; open() opens them.

        reconnect_limit_s: maximum wait of a request for a scheduler. If it is None, requests fail
        when their link breaks, new requests wait for the next link, and announced shutdowns are
        ignored. on_link_lost gets a scheduler's name.
        """
        self.pending = PendingRequests(tensors, self, on_end)
        self._on_link_lost = on_link_lost
        self._tensors = tensors
        self._schedulers = schedulers
        self._on_notice = on_notice
        self._limit_s = reconnect_limit_s
        self._clock: Clock = asyncio.get_running_loop() if clock is None else clock
        self._opened = False
        self.links_up = 0
        self._routes: dict[str, Route] = {}
        self._table = RoutingTable[Route]()
        self._notices = NoticeMerge[Route]()
        self._by_head = BoundedCache[bytes, Route](_CACHED_HEADS, _MAX_CACHED_HEAD_BYTES)
        self._table_changed = False
        self._returned: list[PendingRequest] = []
        # Requests that wait for a scheduler, by id; the earliest held_until comes first.
        self._held: dict[int, PendingRequest] = {}
        self._held_timer: Timer | None = None
        self._closed = False
        # True after close(), or if no scheduler has been connected for longer than the limit.
        self._unreachable = False
        self._alone_timer: Timer | None = None

    def live_addresses(self) -> list[str]:
        """Return the addresses of connected schedulers; schedulers that shut down come last."""
        return [route.address for route in self._table.live()]

    def open(self) -> None:
        """Open the links, unless they are open or closed; call this from the event loop."""
        if not self._opened and not self._closed:
            self._opened = True
            self._start_alone_timer()
            self._schedulers.watch(self._set_addresses, self.live_addresses)

    def close(self, reason: NereidError | None = None) -> None:
        """Close the links. Pending requests fail with the reason, and new requests are refused."""
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

    def _set_addresses(self, addresses: list[str]) -> None:
        """Open links to new addresses; keep a retired link while it is up."""
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
        """Handle a frame's announcements and returned requests, after all its items were read."""
        # Count only announcements in earlier frames, because the items of a frame have no order.
        announcements = link.announcements
        link.announcements += link.unread_announcements
        link.unread_announcements = 0
        if self._table_changed:
            self._table_changed = False
            self._on_table_changed()
        # Do this after announcements, which may say where returned requests have to go.
        returned, self._returned = self._returned, []
        for pending in returned:
            if pending.request.id in self.pending.requests:
                self._on_moved(link, pending, announcements)

    def _on_down(self, route: Route) -> None:
        """Send the link's requests again unless a response has arrived."""
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
                # Once this scheduler is connected again, it may have the model.
                pending.attempts.returned_by = None
        text = "the link to %s broke; %d requests are sent again, or wait for a scheduler"
        _log.warning(text, route, len(unfinished))
        for pending in unfinished:
            self._dispatch(pending)
        if route.retired:
            self._remove(route)

    def _on_disconnected(self, route: Route) -> None:
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
        """Handle a scheduler's greeting, announcement of models, or rules."""
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
        """Accept a request that its scheduler returned, to dispatch it after the frame."""
        if self._limit_s is None:
            return False
        if pending.route is link:
            self._returned.append(pending)
            self.pending.request_frame_end()
        return True

    def _on_greeting(self, route: Route, greeting: CachedModels) -> None:
        """Handle the first item on a link, which a scheduler may repeat."""
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
        route.timer = None
        self._table.forget(route)
        self._on_table_changed()

    def _start_alone_timer(self) -> None:
        if self._limit_s is not None:
            limit = self._clock.time() + self._limit_s
            self._alone_timer = self._clock.call_at(limit, self._on_alone_limit)

    def _stop_timers(self, route: Route) -> None:
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

    def _forget_places(self) -> None:
        self._by_head.clear()
        self.pending.set_only_route(None if self._closed else self._table.only())

    def place(self, pending: PendingRequest) -> Route | None:
        """Return the route of a new request; None if the request is held or has failed."""
        if self._unreachable:
            self.pending.fail(pending, unreachable())
            return None
        route = self._find_route(pending.request)
        if route is None:
            self._hold(pending)
        return route

    def _find_route(self, request: InferRequest) -> Route | None:
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
        # Keep the order of arrival, because requests may belong to the same sequence.
        for request_id in sorted(self._held):
            if request_id in self.pending.requests:
                self._dispatch(self._held[request_id])
            else:
                # The request has ended: its scheduler returned it, but also responded to it.
                del self._held[request_id]

    def _on_moved(self, route: Route, pending: PendingRequest, announcements: int) -> None:
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
        request = pending.request
        model = _model_of(request.head)
        returned_by = pending.attempts.returned_by
        # If the request was returned, another scheduler has the model. Wait for its announcement.
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
            # The tensors may be in shared memory, if an earlier scheduler shared memory.
            self._tensors.make_inline(request)
        route.send(request)

    def send_again(self, pending: PendingRequest) -> None:
        """Send a request again because its response was lost."""
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
        self._held_timer = None
        now = self._clock.time()
        if self._limit_s is not None and self._table.is_lone:
            # The only scheduler is shutting down. Requests wait for its successor.
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
    try:
        return kserve_pb2.ModelInferRequest.FromString(head).model_name
    except DecodeError:
        return ""
