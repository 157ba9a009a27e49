"""Requests that still run while their gateway's link is down.

An orphan runs, has its response, or is claimed. It goes on for a limited time, and its response is
kept for as long. A gateway that is back and sends the request again claims the orphan, so that it
does not run twice; an orphan that nobody claims is cancelled. Knows no link.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.core.requests.entry import PendingRequest
    from nereid_scheduler.core.requests.load_queue import OnResponse


class OrphanedRequest:
    """One orphaned request; a PendingRequest of the gateway that claims it."""

    def __init__(self, request_id: int, pending: PendingRequest, owner: OrphanedRequests) -> None:
        self.request_id = request_id
        self.pending = pending
        self._owner = owner
        # Set once the request has run.
        self.response: InferResponse | None = None
        # Callback of the gateway that has claimed it.
        self.on_response: OnResponse | None = None
        # Limits its time until it is claimed.
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Remove the request here and cancel it at its model."""
        self._owner.remove(self)
        self.pending.cancel()

    def set_flow(self, *, paused: bool) -> None:
        """Do nothing: it has a single response."""


class OrphanedRequests:
    """All orphans of a scheduler, by id. A GatewayLink of sessions whose link is down."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._requests: dict[int, OrphanedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def adopt(self, request_id: int, pending: PendingRequest) -> None:
        """Keep a request that runs while its gateway is disconnected; its response comes by send().

        It may be an orphan that was claimed by a gateway that is disconnected again.
        """
        if isinstance(pending, OrphanedRequest):
            orphan = pending
            orphan.on_response = None
        else:
            orphan = self._requests[request_id] = OrphanedRequest(request_id, pending, self)
        loop = asyncio.get_running_loop()
        orphan.timer = loop.call_later(self._limit_s, orphan.cancel)

    def claim(self, request_id: int, on_response: OnResponse) -> OrphanedRequest | None:
        """Give a gateway that is back its request; on_response gets the response later.

        Returns `None` if the request is not here, or was claimed.
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
        """Forget an orphan that has its response, or needs none."""
        self._stop_timer(orphan)
        self._requests.pop(orphan.request_id, None)

    def send(self, response: InferResponse) -> None:
        """Keep the response of an orphan, or send it to the gateway that has claimed it."""
        orphan = self._requests.get(response.id)
        if orphan is None:
            return
        if orphan.on_response is None:
            orphan.response = response
        else:
            self.remove(orphan)
            orphan.on_response(response)

    def send_now(self, response: InferResponse) -> None:
        """Do the same as send()."""
        self.send(response)

    def _stop_timer(self, orphan: OrphanedRequest) -> None:
        if orphan.timer is not None:
            orphan.timer.cancel()
            orphan.timer = None
