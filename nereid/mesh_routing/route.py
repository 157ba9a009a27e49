"""A link to one of several schedulers, a request that was sent over one, and what a router needs of
the process that it is in.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from nereid.pending_requests import PendingRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferRequest
    from nereid.mesh_client import OpenLink, SchedulerLink
    from nereid.mesh_routing.mesh_router import MeshRouter
    from nereid.pending_requests import OnResponse


class Timer(Protocol):
    """An asyncio.TimerHandle."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class Schedulers(Protocol):
    """How the schedulers are reached."""

    def watch(self, on_addresses: Callable[[list[str]], None]) -> None:
        """Call on_addresses with their addresses, from soon on and after every change."""

    def open_link(self, address: str) -> OpenLink:
        """Opens links to the scheduler at an address."""

    def close_channel(self, address: str) -> None:
        """The scheduler at this address is not there any more."""


class Route:
    """The link to one scheduler."""

    def __init__(self, router: MeshRouter, address: str, open_link: OpenLink) -> None:
        self.address = address
        # Requests can be sent.
        self.up = False
        # Whether the scheduler shares memory with this process; of which domain.
        self.shares = False
        self.domain = ""
        # It is not among the addresses any more.
        self.retired = False
        # How often it has announced what it owns.
        self.announcements = 0
        # It forgets what the scheduler had, some time after the link broke.
        self.timer: Timer | None = None
        self._link: SchedulerLink = open_link(
            on_items=partial(router.on_items, self),
            on_up=lambda: None,
            on_down=partial(router.on_down, self),
        )
        self.send, self.send_now = self._link.send, self._link.send_now

    def close(self) -> None:
        """End the link for good."""
        self._link.close()

    def __str__(self) -> str:
        return self.address


class RoutedRequest(PendingRequest):
    """A pending request, and where it was sent."""

    __slots__ = ("held_until", "moves", "returned_at", "route")

    # While it is held: a time of the clock.
    held_until: float
    # Who returned it last, and after how many announcements of theirs.
    returned_at: tuple[Route | None, int]

    def __init__(
        self, router: MeshRouter, request: InferRequest, on_response: OnResponse, size_bytes: int
    ) -> None:
        # As PendingRequest's, in one call less: this is on every request's way.
        self._client = router
        self.request = request
        self.on_response = on_response
        self.size_bytes = size_bytes
        self.responses = self.lost_responses = 0
        # None: it is held.
        self.route: Route | None = None
        # How often it was returned.
        self.moves = 0
