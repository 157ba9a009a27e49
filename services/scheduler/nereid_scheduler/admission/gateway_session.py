"""One gateway's link: requests and cancellations in, responses out.

Knows who is connected and which of the gateway's requests are pending; nothing of models or queues.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, ClassVar, Protocol

from nereid.core.wire.messages import Cancel, FlowControl, InferRequest
from nereid_scheduler.admission.admission import client_error, refusal_response
from nereid_scheduler.admission.orphaned_requests import OrphanedRequest
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.core.requests.segment_owners import SegmentOwners

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferResponse, ToScheduler
    from nereid_scheduler.admission.admission import Admission
    from nereid_scheduler.core.requests.entry import PendingRequest
    from nereid_scheduler.core.requests.load_queue import OnQueued, OnResponse


class GatewayLink(Protocol):
    """The scheduler's end of a gateway's link; nereid.rpc.Link is one."""

    def send(self, item: InferResponse) -> None:
        """Send a response, together with the others of this loop turn."""

    def send_now(self, item: InferResponse) -> None:
        """Send a response and all that is buffered at once."""


class GatewaySession:
    """The pending requests of one gateway. Set link before items come."""

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
        """domain: the shared-memory domain of the gateway; empty: it has none. for_models: it is
        no gateway's: models make calls over it, which nobody sends again.
        """
        self._admission = admission
        self.for_models = for_models
        self._segment_owners = segment_owners or SegmentOwners()
        self.shares = self._segment_owners.shares_domain(domain)
        # Segments that responses lie in, until the gateway releases them.
        self._lent: set[str] = set()
        # Tells this link from the others in metrics.
        self.number = next(self._numbers)
        self._pending: dict[int, PendingRequest] = {}
        admission.sessions[self] = None
        # Bound once, not once for each request.
        self._on_response: OnResponse = self._send_response
        self._on_queued: OnQueued = self._pending.__setitem__

    @property
    def pending(self) -> int:
        """How many of its requests have no last response yet."""
        return len(self._pending)

    def client_entries(self) -> list[Entry]:
        """Its requests in models' queues and instances, but for those that models make: whoever
        made one waits for it here.
        """
        pending = self._pending.values()
        return [each for each in pending if isinstance(each, Entry) and not each.request.caller]

    def on_items(self, items: list[ToScheduler]) -> None:
        """Requests and cancellations of one frame."""
        if self not in self._admission.sessions:
            return  # its gateway has sent them again
        # No request of this frame waits for another turn of the event loop at an idle model.
        last = items[-1] if items else None
        for item in items:
            if isinstance(item, InferRequest):
                self._submit(item, item is last)
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

    def on_down(self) -> None:
        """The link broke, or its gateway has given it up. A gateway that is still alive sends its
        requests again on a new one: those that run go on for a while.
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
        # Their responses need no segments of this gateway's session.
        self.link, self.shares = orphans, False
        self._segment_owners.return_segments(self._lent, discard=True)
        self._lent.clear()

    def has_pending(self, request_id: int) -> bool:
        """Whether it is a request of this gateway's without a last response."""
        return request_id in self._pending

    def _submit(self, request: InferRequest, at_once: bool) -> None:
        try:
            if request.resent:
                self._admission.end_older_link(request.id, self)
            self._pending[request.id] = self._admission.submit(
                request, self._on_response, self._on_queued, at_once=at_once
            )
        except Exception as error:
            self._refuse(request, client_error(error, request))

    def _refuse(self, request: InferRequest, error: NereidError) -> None:
        # Not in the except block: a frame that holds its own error would keep the request, and its
        # memory, until the next garbage collection.
        self._admission.trace_refusal(request, error)
        self.link.send(refusal_response(request, error))

    def _cancel(self, number: int) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.cancel()

    def _send_response(self, response: InferResponse) -> None:
        pending = self._pending
        if response.id not in pending:
            # Cancelled meanwhile.
            self._segment_owners.drop_response(response)
            return
        if response.segment_name:
            response = self._lend_segment(response)
        if response.more:
            self.link.send(response)
            return
        del pending[response.id]
        if pending:
            self.link.send(response)
        else:
            # No other response of this turn could share the frame.
            self.link.send_now(response)

    def _lend_segment(self, response: InferResponse) -> InferResponse:
        if not self.shares:
            return self._segment_owners.inline_response(response)
        self._lent.add(response.segment_name)
        return response
