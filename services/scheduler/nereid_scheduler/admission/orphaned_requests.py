"""Requests that run while their gateway's link is down: if it sends them again, they need not.

Each goes on for a limited time, and its response is kept for as long. A gateway that is back claims
it; what nobody claims is cancelled. Knows no link.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.core.requests.entry import PendingRequest
    from nereid_scheduler.core.requests.load_queue import OnResponse


class OrphanedRequest:
    """One of them. For the gateway that claims it, a PendingRequest."""

    def __init__(self, request_id: int, pending: PendingRequest, owner: OrphanedRequests) -> None:
        self.request_id = request_id
        self.pending = pending
        self._owner = owner
        # It has run.
        self.response: InferResponse | None = None
        # Whoever has claimed it.
        self.on_response: OnResponse | None = None
        # Until it is claimed.
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self._owner.remove(self)
        self.pending.cancel()

    def set_flow(self, *, paused: bool) -> None:
        """Do nothing: it has a single response."""


class OrphanedRequests:
    """All of a scheduler, by id. A GatewayLink for those sessions whose link is down."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._requests: dict[int, OrphanedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def adopt(self, request_id: int, pending: PendingRequest) -> None:
        """A request runs whose gateway is disconnected. Its response comes by send(). It may be one
        that was claimed, and whose gateway is disconnected again.
        """
        if isinstance(pending, OrphanedRequest):
            orphan = pending
            orphan.on_response = None
        else:
            orphan = self._requests[request_id] = OrphanedRequest(request_id, pending, self)
        loop = asyncio.get_running_loop()
        orphan.timer = loop.call_later(self._limit_s, orphan.cancel)

    def claim(self, request_id: int, on_response: OnResponse) -> OrphanedRequest | None:
        """The gateway is back: have the response given to on_response, later. None: the request is
        not here, or was claimed.
        """
        orphan = self._requests.get(request_id)
        if orphan is None or orphan.on_response is not None:
            return None
        if orphan.response is None:
            self._stop_timer(orphan)
            orphan.on_response = on_response
        else:
            self.remove(orphan)
            asyncio.get_running_loop().call_soon(on_response, orphan.response)
        return orphan

    def remove(self, orphan: OrphanedRequest) -> None:
        """It has its response, or needs none."""
        self._stop_timer(orphan)
        self._requests.pop(orphan.request_id, None)

    def send(self, response: InferResponse) -> None:
        orphan = self._requests.get(response.id)
        if orphan is None:
            return
        if orphan.on_response is None:
            orphan.response = response
        else:
            self.remove(orphan)
            orphan.on_response(response)

    def send_now(self, response: InferResponse) -> None:
        self.send(response)

    def _stop_timer(self, orphan: OrphanedRequest) -> None:
        if orphan.timer is not None:
            orphan.timer.cancel()
            orphan.timer = None
