"""Orphans: requests that still execute while their gateway's link is down.

A gateway that sends the request again claims the orphan, so that the request does not run twice. An
orphan that is not claimed within a time limit is cancelled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.core.requests.entry import PendingRequest
    from nereid_scheduler.core.requests.load_queue import OnResponse


class OrphanedRequest:
    """One orphan. It is a PendingRequest for the gateway that claims it."""

    def __init__(self, request_id: int, pending: PendingRequest, owner: OrphanedRequests) -> None:
        self.request_id = request_id
        self.pending = pending
        self._owner = owner
        self.response: InferResponse | None = None
        # Set once a gateway has claimed the orphan.
        self.on_response: OnResponse | None = None
        # Cancels the orphan unless it is claimed in time.
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Forget the orphan, and cancel the request at its model."""
        self._owner.remove(self)
        self.pending.cancel()

    def set_flow(self, *, paused: bool) -> None:
        """Do nothing, as orphans have a single response."""


class OrphanedRequests:
    """All orphans of a scheduler, by id. Sessions whose link is down use this as their link."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._requests: dict[int, OrphanedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def adopt(self, request_id: int, pending: PendingRequest) -> None:
        """Keep a request whose gateway is disconnected; it may have been an orphan already."""
        if isinstance(pending, OrphanedRequest):
            orphan = pending
            orphan.on_response = None
        else:
            orphan = self._requests[request_id] = OrphanedRequest(request_id, pending, self)
        loop = asyncio.get_running_loop()
        orphan.timer = loop.call_later(self._limit_s, orphan.cancel)

    def claim(self, request_id: int, on_response: OnResponse) -> OrphanedRequest | None:
        """Claim and return a resent request's orphan; `None` if there is none to claim."""
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
        """Forget an orphan that was cancelled, or whose response was sent."""
        self._stop_timer(orphan)
        self._requests.pop(orphan.request_id, None)

    def send(self, response: InferResponse, at_once: bool = False) -> None:  # noqa: ARG002 (as Link)
        """Keep the response of an orphan, or send it to the gateway that claimed the orphan."""
        orphan = self._requests.get(response.id)
        if orphan is None:
            return
        if orphan.on_response is None:
            orphan.response = response
        else:
            self.remove(orphan)
            orphan.on_response(response)

    def _stop_timer(self, orphan: OrphanedRequest) -> None:
        if orphan.timer is not None:
            orphan.timer.cancel()
            orphan.timer = None
