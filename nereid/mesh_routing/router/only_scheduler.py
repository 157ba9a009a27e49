"""Router to a mesh's only scheduler.

While the scheduler is away or shuts down, requests wait for it, or for its next process. Those that
it may have begun are then marked as resent.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nereid.core.wire.messages import CachedModels, Ownership
from nereid.mesh_routing.control_calls import UNREACHABLE, unreachable
from nereid.mesh_routing.router.pending_requests import PendingRequests
from nereid.mesh_routing.router.route import Route

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import Notice
    from nereid.mesh_routing.router.pending_requests import PendingRequest, TensorSharing
    from nereid.mesh_routing.router.route import Clock, OpenLink, Timer
    from nereid.mesh_routing.router.router import Callbacks

_log = logging.getLogger(__name__)


class OnlySchedulerRouter:
    """Owner of the link to the scheduler, and of the table of pending requests. It is a Router."""

    def __init__(
        self,
        open_link: OpenLink,
        tensors: TensorSharing,
        reconnect_limit_s: float | None,
        callbacks: Callbacks,
        clock: Clock | None = None,
    ) -> None:
        """Create a router without a link; open() opens it.

        reconnect_limit_s: maximum time without the scheduler. If it is None, requests fail when the
        link breaks, new requests wait for the next link, and announced shutdowns are ignored.
        """
        self.pending = PendingRequests(tensors, self)
        self.links_up = 0
        self._open_link = open_link
        self._tensors = tensors
        self._limit_s = reconnect_limit_s
        self._callbacks = callbacks
        self._clock: Clock = asyncio.get_running_loop() if clock is None else clock
        self._route: Route | None = None
        # The scheduler is shutting down.
        self._leaving = False
        # True after close(), or if the scheduler has been away for longer than the limit.
        self._unreachable = False
        self._closed = False
        self._no_scheduler_timer: Timer | None = None

    def open(self) -> None:
        """Open the link, unless it is open or closed; call this from the event loop."""
        if self._route is None and not self._closed:
            self._start_timer()
            self._route = Route("", self._open_link, self.pending.on_items, self._on_down)

    def close(self, reason: NereidError | None = None) -> None:
        """Close the link. Pending requests fail with the reason, and new requests are refused."""
        self._closed = self._unreachable = True
        self.pending.set_common_route(None)
        self.links_up = 0
        self._stop_timer()
        if self._route is not None:
            self._route.up = False
            self._route.close()
        self.pending.fail_all(unreachable() if reason is None else reason)

    def place(self, pending: PendingRequest) -> None:
        """Let a request wait for the scheduler, or fail it after the limit."""
        if self._unreachable:
            self.pending.fail(pending, unreachable())

    def send_again(self, pending: PendingRequest) -> None:
        """Send a request again because its response was lost."""
        if self._route is not None and self._accepts(self._route):
            self._send(pending, self._route)

    def take_back(self, pending: PendingRequest, link: Route) -> bool:  # noqa: ARG002 - of RequestRouter
        """Let a request that the scheduler returned wait, if the scheduler is shutting down."""
        if self._leaving:
            pending.route = None
        return self._leaving

    def on_notice(self, notice: Notice, link: Route) -> None:
        """Handle the scheduler's greeting, rules, or announcement that it shuts down."""
        if self._closed:
            return
        if isinstance(notice, Ownership):
            self._leaving = notice.leaving and self._limit_s is not None
            self.pending.request_frame_end()
            return
        if isinstance(notice, CachedModels):
            self._on_greeting(link, notice)
        self._callbacks.on_notice(notice)

    def on_frame_end(self, link: Route) -> None:
        """Send the requests that wait, if the scheduler accepts requests from now on."""
        route = link if self._accepts(link) else None
        if self.pending.set_common_route(route) and route is not None:
            for pending in self.pending.waiting():
                self._send(pending, route)

    def _accepts(self, route: Route) -> bool:
        return route.up and not self._leaving

    def _send(self, pending: PendingRequest, route: Route) -> None:
        pending.route = route
        if not route.shares:
            # The tensors may be in shared memory, if an earlier scheduler shared memory.
            self._tensors.make_inline(pending.request)
        route.send(pending.request)

    def _on_greeting(self, route: Route, greeting: CachedModels) -> None:
        """Handle the first item on a link, which a scheduler may repeat."""
        self._tensors.on_scheduler_domain(greeting.shm_namespace)
        route.shares = self._tensors.shared
        if route.up:
            return
        route.up, self._leaving, self._unreachable = True, False, False
        self.links_up = 1
        self._stop_timer()
        self.pending.request_frame_end()
        waiting = len(self.pending.waiting())
        _log.info("connected to %s%s", route, f"; {waiting} requests waited" if waiting else "")

    def _on_down(self, route: Route) -> None:
        """Mark the requests without a response, which wait for the next link."""
        if not route.up:
            return
        route.up = route.shares = False
        self.links_up = 0
        self._tensors.on_scheduler_domain("")
        self.pending.set_common_route(None)
        self._start_timer()
        self._callbacks.on_link_lost(str(route))
        unfinished = self.pending.on_link_down(route)
        if self._limit_s is None:
            for pending in unfinished:
                self.pending.fail(pending, unreachable())
            self.pending.check_drained()
        else:
            text = "the link to %s broke; %d requests wait to be sent again"
            _log.warning(text, route, len(unfinished))

    def _start_timer(self) -> None:
        if self._limit_s is not None:
            limit = self._clock.time() + self._limit_s
            self._no_scheduler_timer = self._clock.call_at(limit, self._on_no_scheduler_limit)

    def _stop_timer(self) -> None:
        if self._no_scheduler_timer is not None:
            self._no_scheduler_timer.cancel()
            self._no_scheduler_timer = None

    def _on_no_scheduler_limit(self) -> None:
        self._no_scheduler_timer = None
        self._unreachable = True
        _log.error("%s; failing %d pending requests", UNREACHABLE, len(self.pending.requests))
        self.pending.fail_all(unreachable())
