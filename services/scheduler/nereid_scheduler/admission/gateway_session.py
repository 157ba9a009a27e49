"""Session of one gateway's link: it receives requests and cancellations, and sends responses."""

# layout: compiled

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, ClassVar, Protocol

from nereid.core.wire.messages import Cancel, FlowControl, InferRequest
from nereid_scheduler.admission.orphaned_requests import OrphanedRequest
from nereid_scheduler.admission.refusals import client_error, refusal_response
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.core.requests.segment_owners import SegmentOwners

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferResponse, ToScheduler
    from nereid_scheduler.admission.admission import Admission
    from nereid_scheduler.core.requests.entry import PendingRequest
    from nereid_scheduler.core.requests.load_queue import OnQueued, OnResponse


class GatewayLink(Protocol):
    """Interface for the scheduler's end of a gateway's link; nereid.rpc.Link implements it."""

    def send(self, item: InferResponse, at_once: bool = False) -> None:
        """Send a response at the end of the event loop's turn, or all pending ones at once."""


class GatewaySession:
    """Pending requests of one gateway. Set `link` before the gateway sends its first item."""

    link: GatewayLink
    _numbers: ClassVar = count(1)

    def __init__(
        self,
        admission: Admission,
        segment_owners: SegmentOwners | None = None,
        domain: str = "",
        *,
        for_models: bool = False,
    ) -> None:
        """for_models: models make the calls on this link, which are never sent again."""
        self._admission = admission
        self._steps = admission.steps
        self.for_models = for_models
        self._segment_owners = segment_owners or SegmentOwners()
        self.shares = self._segment_owners.shares_domain(domain)
        # Segments that hold responses and that the gateway has not released yet.
        self._lent: set[str] = set()
        self.number = next(self._numbers)
        self._pending: dict[int, PendingRequest] = {}
        admission.sessions[self] = None
        # Bound once, not once for each request.
        self._on_response: OnResponse = self._send_response
        self._on_queued: OnQueued = self._pending.__setitem__

    @property
    def pending(self) -> int:
        """Number of this gateway's requests without a last response."""
        return len(self._pending)

    def client_entries(self) -> list[Entry]:
        """Return accepted requests of clients, without those that models make and wait for."""
        pending = self._pending.values()
        return [entry for entry in pending if isinstance(entry, Entry) and not entry.request.caller]

    def on_items(self, items: list[ToScheduler]) -> None:
        """Handle the requests, cancellations and releases of one frame."""
        if self not in self._admission.sessions:
            return  # the session has ended; the gateway sends its requests again on another link
        steps = self._steps
        steps.begin_input()
        try:
            for item in items:
                if isinstance(item, InferRequest):
                    self._submit(item)
                elif isinstance(item, Cancel):
                    self._cancel(item.id)
                elif isinstance(item, FlowControl):
                    pending = self._pending.get(item.id)
                    if pending is not None:
                        pending.set_flow(paused=item.paused)
                else:
                    released = self._lent.intersection(item.segment_names)
                    self._lent -= released
                    self._segment_owners.return_segments(released)
        finally:
            steps.end_input()

    def on_down(self) -> None:
        """End the session, because the link broke or its gateway has given it up.

        Executing requests with a single response go on for a while, as a gateway that is alive
        sends them again. All others are cancelled.
        """
        if self not in self._admission.sessions:
            return
        del self._admission.sessions[self]
        orphans = self._admission.orphans
        for number, pending in list(self._pending.items()):
            runs = isinstance(pending, Entry) and pending.is_running_once
            if not self.for_models and (runs or isinstance(pending, OrphanedRequest)):
                orphans.adopt(number, pending)
            else:
                self._cancel(number)
        # From now on responses go to the orphans, and are kept outside shared memory.
        self.link, self.shares = orphans, False
        self._segment_owners.return_segments(self._lent, discard=True)
        self._lent.clear()

    def has_pending(self, request_id: int) -> bool:
        """Return whether a request of this gateway has no last response yet."""
        return request_id in self._pending

    def _submit(self, request: InferRequest) -> None:
        try:
            if request.resent:
                self._admission.end_older_link(request.id, self)
            self._pending[request.id] = self._admission.submit(
                request, self._on_response, self._on_queued
            )
        except Exception as error:
            self._refuse(request, client_error(error, request))

    def _refuse(self, request: InferRequest, error: NereidError) -> None:
        # A method of its own: no frame in the error's traceback refers to the error. Such a cycle
        # would keep the request and its memory until the next garbage collection.
        self._admission.trace_refusal(request, error)
        self.link.send(refusal_response(request, error))

    def _cancel(self, number: int) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.cancel()

    def _send_response(self, response: InferResponse) -> None:
        pending = self._pending
        if response.id not in pending:
            # The request was cancelled while it ran.
            self._segment_owners.drop_response(response)
            return
        if response.segment_name:
            response = self._lend_segment(response)
        if response.more:
            self.link.send(response)
            return
        del pending[response.id]
        # Without another pending request, no response will share the frame.
        self.link.send(response, not pending)

    def _lend_segment(self, response: InferResponse) -> InferResponse:
        if not self.shares:
            return self._segment_owners.inline_response(response)
        self._lent.add(response.segment_name)
        return response
