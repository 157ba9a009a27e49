"""Requests that run while their gateway's link is down: if it sends them again, they need not.

Each goes on for a limited time, and its response is kept for as long. A gateway that is back claims
it; what nobody claims is cancelled. Knows no link.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferResponse
    from nereid.services.scheduler.requests.entry import PendingRequest
    from nereid.services.scheduler.requests.load_queue import OnResponse


class OrphanedRequest:
    """One of them. For the gateway that claims it, a PendingRequest."""

    def __init__(self, pending: PendingRequest, forget: Callable[[], None]) -> None:
        self._pending = pending
        self._forget = forget
        self._response: InferResponse | None = None
        self._on_response: OnResponse | None = None

    def cancel(self) -> None:
        self._forget()
        self._pending.cancel()

    def set_flow(self, *, paused: bool) -> None:
        """Do nothing: it has a single response."""

    def claim(self, on_response: OnResponse) -> None:
        """Have the response given to on_response, later."""
        self._on_response = on_response
        if self._response is not None:
            self._forget()
            asyncio.get_running_loop().call_soon(on_response, self._response)

    @property
    def claimed(self) -> bool:
        return self._on_response is not None

    def respond(self, response: InferResponse) -> None:
        """It has run."""
        if self._on_response is None:
            self._response = response
        else:
            self._forget()
            self._on_response(response)


class OrphanedRequests:
    """All of a scheduler, by id. A GatewayLink for those sessions whose link is down."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._requests: dict[int, OrphanedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def adopt(self, request_id: int, pending: PendingRequest) -> None:
        """A request runs whose gateway is disconnected. Its response comes by send()."""

        def forget() -> None:
            timer.cancel()
            self._requests.pop(request_id, None)

        orphan = self._requests[request_id] = OrphanedRequest(pending, forget)
        timer = asyncio.get_running_loop().call_later(self._limit_s, self._expire, orphan)

    def claim(self, request_id: int, on_response: OnResponse) -> OrphanedRequest | None:
        """The gateway is back; None: it is not here, or was claimed."""
        orphan = self._requests.get(request_id)
        if orphan is None or orphan.claimed:
            return None
        orphan.claim(on_response)
        return orphan

    def send(self, response: InferResponse) -> None:
        orphan = self._requests.get(response.id)
        if orphan is not None:
            orphan.respond(response)

    def send_now(self, response: InferResponse) -> None:
        self.send(response)

    def _expire(self, orphan: OrphanedRequest) -> None:
        if not orphan.claimed:
            orphan.cancel()
