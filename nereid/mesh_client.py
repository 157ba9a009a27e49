"""A client of the scheduler: sends inference requests over one link.

Each request gets its responses until the last one, which is the only one for most; a cancelled
request gets none. What happens to pending requests when the link breaks is the owner's choice:
they fail, or wait up to a limit for the link to come back and are sent again. Runs in one event
loop; knows neither services nor the protocols of clients.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from nereid import rpc
from nereid.control_calls import UNREACHABLE, unreachable
from nereid.core.codecs import RequestCodec, ResponseCodec
from nereid.core.messages import (
    CachedModels,
    Cancel,
    FlowControl,
    Ownership,
    Release,
)
from nereid.core.methods import INFER_PATH, SHM_NAMESPACE_KEY
from nereid.pending_requests import LINK_BROKE, PendingRequest, PendingRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.errors import NereidError
    from nereid.core.messages import FromScheduler, InferRequest, Notice, ToScheduler
    from nereid.mesh_routing.mesh_router import MeshRouter
    from nereid.mesh_routing.route import Clock, Timer
    from nereid.pending_requests import OnResponse, TensorSharing

_log = logging.getLogger(__name__)


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


class MeshClient(PendingRequests[PendingRequest]):
    """The owner of the link.

    reconnect_limit_s: how long requests wait for the link to come back; past it they fail, and new
    ones are refused at once. None: pending requests fail as soon as the link breaks. A scheduler
    that is shutting down gets no new ones: they wait for the next link, if they are to wait.
    await_greeting: requests are sent once the scheduler has said which memory it shares; otherwise
    as soon as the link is up.
    """

    def __init__(  # noqa: PLR0913 (most by keyword)
        self,
        open_link: OpenLink,
        tensors: TensorSharing,
        *,
        on_notice: Callable[[Notice], None] | None = None,
        reconnect_limit_s: float | None = None,
        await_greeting: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(tensors)
        self._clock = clock
        self._open_link = open_link
        self._on_notice = on_notice
        self._reconnect_limit_s = reconnect_limit_s
        self._await_greeting = await_greeting
        # The scheduler can be reached.
        self.up = False
        # Requests can be sent: it is not shutting down.
        self._accepting = False
        # While it is: the last request that was sent before that was known, and those of them that
        # it has returned.
        self._last_sent_id = 0
        self._returned: set[int] = set()
        self._link: SchedulerLink | None = None
        self._closed = False
        # The link has been down for longer than the limit, or is closed.
        self._unreachable = False
        self._reconnect_timer: Timer | None = None

    @property
    def links_up(self) -> int:
        """How many schedulers are connected."""
        return int(self.up)

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
        if self._accepting and self._link is not None:
            if len(self.requests) == 1:
                # There is no other request that this one could share a frame with.
                self._link.send_now(request)
            else:
                self._link.send(request)
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

    def close(self, reason: NereidError | None = None) -> None:
        """End the link; pending requests fail with the reason, new ones are refused."""
        self._closed = self._unreachable = True
        self._stop_reconnect_timer()
        if self._link is not None:
            self._link.close()
        self.up = self._accepting = False
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
        self.up = self._accepting = True
        self._unreachable = False
        self._stop_reconnect_timer()
        if self._link is not None:
            self._send_pending()

    def _send_pending(self) -> None:
        if self.requests:
            _log.info("connected to the scheduler; sending %d pending requests", len(self.requests))
        if self._link is not None:
            # In the order of their arrival: requests of a sequence may be among them.
            for _, pending in sorted(self.requests.items()):
                if not self._tensors.shared:
                    # It may be another scheduler than before.
                    self._tensors.make_inline(pending.request)
                self._link.send(pending.request)

    def _on_leaving(self) -> None:
        """The scheduler shuts down: it finishes what it has, and accepts nothing new."""
        if self._accepting and self._reconnect_limit_s is not None:
            _log.info("the scheduler is shutting down; new requests wait for the next one")
            self._accepting = False
            self._last_sent_id = self._last_id

    def _on_down(self) -> None:
        sent_until = self._last_id if self._accepting else self._last_sent_id
        self.up = self._accepting = False
        self._tensors.on_scheduler_domain("")
        if self._reconnect_limit_s is None:
            self._fail_all(unreachable())
            return
        self._fail_begun(list(self.requests.values()))
        for number, pending in self.requests.items():
            if number <= sent_until and number not in self._returned:
                pending.request.resent = True
        self._returned.clear()
        self._last_sent_id = 0
        _log.warning("%s; %d requests wait to be sent again", LINK_BROKE, len(self.requests))
        self._start_reconnect_timer()

    def _start_reconnect_timer(self) -> None:
        self._stop_reconnect_timer()
        if self._reconnect_limit_s is not None:
            clock = asyncio.get_running_loop() if self._clock is None else self._clock
            limit = clock.time() + self._reconnect_limit_s
            self._reconnect_timer = clock.call_at(limit, self._on_reconnect_limit)

    def _stop_reconnect_timer(self) -> None:
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
            self._reconnect_timer = None

    def _on_reconnect_limit(self) -> None:
        self._reconnect_timer = None
        self._unreachable = True
        _log.error("%s; failing %d pending requests", UNREACHABLE, len(self.requests))
        self._fail_all(unreachable())

    def _send_again(self, pending: PendingRequest) -> None:
        if self._accepting and self._link is not None:
            self._link.send(pending.request)

    def _take_back(self, pending: PendingRequest, _: Any) -> bool:
        """A scheduler that shuts down returns what had been sent before this was known."""
        if self._accepting or self._reconnect_limit_s is None:
            return False
        self.requests[pending.request.id] = pending
        self._returned.add(pending.request.id)
        return True

    def _handle_notice(self, notice: Notice, _: Any) -> None:
        if isinstance(notice, CachedModels):
            self._on_greeting(notice)
        elif isinstance(notice, Ownership) and notice.leaving:
            self._on_leaving()
        if self._on_notice is not None:
            self._on_notice(notice)


class _LinkCodec:
    """Requests to frames, frames to responses."""

    def __init__(self) -> None:
        requests = RequestCodec()
        self.size_bytes, self.encode = requests.size_bytes, requests.encode
        self.decode = ResponseCodec().decode


class MeshAccess(Protocol):
    """The way to the scheduler, or to several."""

    def make_client(
        self,
        tensors: TensorSharing,
        *,
        on_notice: Callable[[Notice], None] | None = None,
        reconnect_limit_s: float,
    ) -> MeshClient | MeshRouter:
        """A client for requests."""

    def channels(self) -> Sequence[rpc.Channel]:
        """For a call that any scheduler can serve, best first."""


class OneScheduler:
    """A MeshAccess to the only scheduler."""

    def __init__(self, open_link: OpenLink, channel: rpc.Channel) -> None:
        self._open_link = open_link
        self._channels = (channel,)

    def make_client(
        self,
        tensors: TensorSharing,
        *,
        on_notice: Callable[[Notice], None] | None = None,
        reconnect_limit_s: float,
    ) -> MeshClient:
        return MeshClient(
            self._open_link, tensors, on_notice=on_notice, reconnect_limit_s=reconnect_limit_s
        )

    def channels(self) -> Sequence[rpc.Channel]:
        return self._channels


def dial_scheduler(channel: rpc.Channel, domain: str = "") -> OpenLink:
    """A link over a channel, which is dialled again for as long as it is open.

    domain: of the memory that this process shares (nereid.shm.segments.shm_namespace).
    """

    def open_link(**callbacks: Any) -> SchedulerLink:
        return rpc.dial_link(
            channel, INFER_PATH, _LinkCodec(), metadata=((SHM_NAMESPACE_KEY, domain),), **callbacks
        )

    return open_link
