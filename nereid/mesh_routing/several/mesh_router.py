"""Router among several schedulers, which has a link to each and routes requests by their models.

If no scheduler has a request's model, the request waits up to the reconnect limit.
"""

# layout: compiled
# layout: covered

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Unavailable
from nereid.core.retry_after import DEFAULT_MS
from nereid.core.wire.messages import CachedModels, Ownership
from nereid.mesh_routing.control_calls import UNREACHABLE, unreachable
from nereid.mesh_routing.router.pending_requests import PendingRequests
from nereid.mesh_routing.router.route import Route, Timer
from nereid.mesh_routing.several.table.notice_merge import NoticeMerge
from nereid.mesh_routing.several.table.routing_table import RoutingTable
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferRequest, Notice
    from nereid.mesh_routing.router.pending_requests import PendingRequest, TensorSharing
    from nereid.mesh_routing.router.route import Clock, OpenLink
    from nereid.mesh_routing.router.router import Callbacks

_log = logging.getLogger(__name__)

NO_OWNER: Final = "no scheduler serves the model at present"
# If schedulers return a request more often, they disagree about its model, and it fails.
_MAX_RETURNS: Final = 16
_CACHED_HEADS: Final = 4096
_MAX_CACHED_HEAD_BYTES: Final = 8192


class Schedulers(Protocol):
    """Source of the schedulers' addresses and of links to them."""

    def watch(
        self,
        on_addresses: Callable[[list[str]], None],
        live_addresses: Callable[[], list[str]],
    ) -> None:
        """Call on_addresses with all addresses, now or soon, and again after every change."""

    def open_link(self, address: str) -> OpenLink:
        """Return a function that opens links to the scheduler at this address."""

    def close_channel(self, address: str) -> None:
        """Close the channel to an address that no scheduler has any more."""


@dataclass(slots=True)
class _LinkState:
    domain: str = ""
    retired: bool = False
    # Numbers of announcements in earlier frames, and in the frame that is being read.
    announcements: int = 0
    unread_announcements: int = 0
    # Runs after the link broke. When it expires, the scheduler's models are forgotten.
    timer: Timer | None = None


@dataclass(slots=True)
class _Returns:
    """Record of a request that schedulers have returned."""

    count: int = 0
    # The route of the last return, and the number of announcements that its scheduler had made
    # before. `None` after a disconnection.
    last: tuple[Route, int] | None = None


class MeshRouter:
    """Owner of the links and of the table of pending requests. It is a Router."""

    def __init__(
        self,
        schedulers: Schedulers,
        tensors: TensorSharing,
        reconnect_limit_s: float,
        callbacks: Callbacks,
        clock: Clock | None = None,
    ) -> None:
        """Create a router without links; open() opens them.

        reconnect_limit_s: maximum wait of a request for a scheduler.
        """
        self.pending = PendingRequests(tensors, self, self.on_end)
        self.links_up = 0
        self._schedulers = schedulers
        self._tensors = tensors
        self._limit_s = reconnect_limit_s
        self._callbacks = callbacks
        self._clock: Clock = asyncio.get_running_loop() if clock is None else clock
        self._opened = False
        self._closed = False
        # True after close(), or if no scheduler has been connected for longer than the limit.
        self._unreachable = False
        self._no_scheduler_timer: Timer | None = None
        self._links: dict[Route, _LinkState] = {}
        self._table = RoutingTable[Route]()
        self._table_changed = False
        self._notices = NoticeMerge[Route]()
        self._by_head = BoundedCache[bytes, Route](_CACHED_HEADS, _MAX_CACHED_HEAD_BYTES)
        # Requests that were returned in the frame that is being read.
        self._returned: list[PendingRequest] = []
        # Key: a pending request that was ever returned.
        self._returns: dict[int, _Returns] = {}
        # Key: a request that waits for a scheduler. Value: when it fails; the earliest comes first.
        self._held: dict[int, float] = {}
        self._held_timer: Timer | None = None

    def live_addresses(self) -> list[str]:
        """Return the addresses of connected schedulers; schedulers that shut down come last."""
        return [route.address for route in self._table.live()]

    def open(self) -> None:
        """Open the links, unless they are open or closed; call this from the event loop."""
        if not self._opened and not self._closed:
            self._opened = True
            self._start_no_scheduler_timer()
            self._schedulers.watch(self._set_addresses, self.live_addresses)

    def close(self, reason: NereidError | None = None) -> None:
        """Close the links. Pending requests fail with the reason, and new requests are refused."""
        self._closed = self._unreachable = True
        self.pending.set_common_route(None)
        self.links_up = 0
        links, self._links = self._links, {}
        timers = [self._no_scheduler_timer, self._held_timer]
        for timer in (*timers, *(state.timer for state in links.values())):
            if timer is not None:
                timer.cancel()
        self._no_scheduler_timer = self._held_timer = None
        for route in links:
            route.up = False
            route.close()
        self.pending.fail_all(unreachable() if reason is None else reason)

    def _set_addresses(self, addresses: list[str]) -> None:
        """Open links to new addresses; keep a retired link while it is up."""
        if self._closed:
            return
        for route, state in list(self._links.items()):
            state.retired = route.address not in addresses
            if state.retired and not route.up:
                self._remove(route)
        known = {route.address for route in self._links}
        for address in addresses:
            if address not in known:
                open_link = self._schedulers.open_link(address)
                route = Route(address, open_link, self.pending.on_items, self._on_down)
                self._links[route] = _LinkState()
                self._table.add(route)
                self._forget_places()

    def on_frame_end(self, link: Route) -> None:
        """Handle a frame's announcements and returned requests, after all its items were read."""
        if self._closed:
            return
        # Count only announcements in earlier frames, because the items of a frame have no order.
        state = self._links[link]
        announcements = state.announcements
        state.announcements += state.unread_announcements
        state.unread_announcements = 0
        if self._table_changed:
            self._table_changed = False
            self._on_table_changed()
        # Do this after announcements, which may say where returned requests have to go.
        returned, self._returned = self._returned, []
        for pending in returned:
            if pending.request.id in self.pending.requests:
                self._on_moved(link, pending, announcements)

    def on_end(self, request_id: int) -> None:
        """Forget a request that has ended."""
        if self._held:
            self._held.pop(request_id, None)
        if self._returns:
            self._returns.pop(request_id, None)

    def _on_down(self, route: Route) -> None:
        """Send the link's requests again unless a response has arrived."""
        if not route.up:
            return
        self._on_disconnected(route)
        self._callbacks.on_link_lost(str(route))
        unfinished = self.pending.on_link_down(route)
        for request_id in self._held:
            returns = self._returns.get(request_id)
            if returns is not None and returns.last is not None and returns.last[0] is route:
                # Once this scheduler is connected again, it may have the model.
                returns.last = None
        text = "the link to %s broke; %d requests are sent again, or wait for a scheduler"
        _log.warning(text, route, len(unfinished))
        for pending in unfinished:
            self._dispatch(pending)
        if not self._closed and self._links[route].retired:
            self._remove(route)

    def _on_disconnected(self, route: Route) -> None:
        route.up = route.shares = False
        self.links_up -= 1
        self._share_tensors()
        self._table.on_down(route)
        self._forget_places()
        self._forward(self._notices.on_down(route))
        limit = self._clock.time() + self._limit_s
        self._links[route].timer = self._clock.call_at(limit, lambda: self._on_lost(route))
        if not self.links_up:
            self._start_no_scheduler_timer()

    def on_notice(self, notice: Notice, link: Route) -> None:
        """Handle a scheduler's greeting, announcement of models, or rules."""
        if self._closed:
            return
        if isinstance(notice, Ownership):
            self._links[link].unread_announcements += 1
            self._table.on_ownership(link, notice)
            self._table_changed = True
            self.pending.request_frame_end()
            return
        if isinstance(notice, CachedModels):
            self._on_greeting(link, notice)
        self._forward(self._notices.on_notice(link, notice))

    def take_back(self, pending: PendingRequest, link: Route) -> bool:
        """Accept a request that its scheduler returned, to dispatch it after the frame."""
        if pending.route is link:
            self._returned.append(pending)
            self.pending.request_frame_end()
        return True

    def _on_greeting(self, route: Route, greeting: CachedModels) -> None:
        """Handle the first item on a link, which a scheduler may repeat."""
        state = self._links[route]
        state.domain = greeting.shm_namespace
        self._tensors.on_scheduler_domain(state.domain)
        route.shares = self._tensors.shared
        self._share_tensors()
        if route.up:
            return
        route.up = self._table_changed = True
        self.pending.request_frame_end()
        self.links_up += 1
        self._unreachable = False
        self._table.on_up(route)
        for timer in (state.timer, self._no_scheduler_timer):
            if timer is not None:
                timer.cancel()
        state.timer = self._no_scheduler_timer = None
        waited = f"; {len(self._held)} requests waited" if self._held else ""
        _log.info("connected to %s%s", route, waited)

    def _share_tensors(self) -> None:
        domains = (state.domain for route, state in self._links.items() if route.shares)
        self._tensors.on_scheduler_domain(next(domains, ""))

    def _remove(self, route: Route) -> None:
        timer = self._links.pop(route).timer
        if timer is not None:
            timer.cancel()
        route.close()
        self._schedulers.close_channel(route.address)
        self._table.remove(route)
        self._on_table_changed()

    def _on_lost(self, route: Route) -> None:
        self._links[route].timer = None
        self._table.forget(route)
        self._on_table_changed()

    def _start_no_scheduler_timer(self) -> None:
        limit = self._clock.time() + self._limit_s
        self._no_scheduler_timer = self._clock.call_at(limit, self._on_no_scheduler_limit)

    def _on_no_scheduler_limit(self) -> None:
        self._no_scheduler_timer = None
        self._unreachable = True
        _log.error("%s; failing %d pending requests", UNREACHABLE, len(self.pending.requests))
        self.pending.fail_all(unreachable())

    def _forward(self, notice: Notice | None) -> None:
        if notice is not None:
            self._callbacks.on_notice(notice)

    def _forget_places(self) -> None:
        self._by_head.clear()
        self.pending.set_common_route(None if self._closed else self._table.single_accepting())

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
            self._dispatch(self.pending.requests[request_id])

    def _on_moved(self, route: Route, pending: PendingRequest, announcements: int) -> None:
        pending.route = None
        returns = self._returns.setdefault(pending.request.id, _Returns())
        returns.count += 1
        returns.last = route, announcements
        if returns.count > _MAX_RETURNS:
            self.pending.fail(pending, Unavailable(NO_OWNER, retry_after_ms=DEFAULT_MS))
            self.pending.check_drained()
        else:
            self._dispatch(pending)

    def _dispatch(self, pending: PendingRequest) -> None:
        request = pending.request
        model = _model_of(request.head)
        returns = self._returns.get(request.id)
        returned_by = None if returns is None else returns.last
        # If the request was returned, another scheduler has the model. Wait for its announcement.
        route = self._table.find(model) if returned_by is None else self._table.owner(model)
        if route is None and request.caller:
            route = self._table.find_leaving(model)
        if route is None or (route, self._links[route].announcements) == returned_by:
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
        self._dispatch(pending)

    def _hold(self, pending: PendingRequest) -> None:
        if pending.request.id in self._held:
            return
        held_until = self._held[pending.request.id] = self._clock.time() + self._limit_s
        if self._held_timer is None:
            self._held_timer = self._clock.call_at(held_until, self._on_held_limit)

    def _on_held_limit(self) -> None:
        self._held_timer = None
        now = self._clock.time()
        if self._table.has_only_unnamed_scheduler:
            # The only scheduler is shutting down. Requests wait for its successor.
            if self._held:
                self._held_timer = self._clock.call_at(now + self._limit_s, self._on_held_limit)
            return
        for request_id, held_until in list(self._held.items()):
            if held_until > now:
                self._held_timer = self._clock.call_at(held_until, self._on_held_limit)
                break
            pending = self.pending.requests.get(request_id)
            if pending is not None:
                self.pending.fail(pending, Unavailable(NO_OWNER, retry_after_ms=DEFAULT_MS))
        self.pending.check_drained()


def _model_of(head: bytes) -> str:
    try:
        return kserve_pb2.ModelInferRequest.FromString(head).model_name
    except DecodeError:
        return ""
