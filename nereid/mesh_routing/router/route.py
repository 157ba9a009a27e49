"""The link to one scheduler, and what a client of schedulers needs of the process that it is in."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import FromScheduler, ToScheduler
    from nereid.rpc import Channel


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


class Timer(Protocol):
    """An asyncio.TimerHandle."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class Schedulers(Protocol):
    """How the schedulers are reached."""

    def watch(
        self,
        on_addresses: Callable[[list[str]], None],
        live_addresses: Callable[[], list[str]],
    ) -> None:
        """Call on_addresses with their addresses, at once or soon, and after every change.

        live_addresses: of those that are connected; the ones that shut down come last.
        """

    def open_link(self, address: str) -> OpenLink:
        """Opens links to the scheduler at an address."""

    def close_channel(self, address: str) -> None:
        """The scheduler at this address is not there any more."""


class MeshAccess(Schedulers, Protocol):
    """The way to the schedulers, of which one router is made."""

    def channels(self) -> Sequence[Channel]:
        """For a call that any scheduler can serve, best first."""


class Route:
    """The link to one scheduler."""

    def __init__(
        self,
        address: str,
        open_link: OpenLink,
        on_items: Callable[[Route, list[FromScheduler]], None],
        on_down: Callable[[Route], None],
    ) -> None:
        """address: empty if there is only one scheduler."""
        self.address = address
        # The scheduler has greeted: requests can be sent.
        self.up = False
        # Whether the scheduler shares memory with this process; of which domain.
        self.shares = False
        self.domain = ""
        # It is not among the addresses any more.
        self.retired = False
        # How often it has announced what it owns; in the frame that is being read.
        self.announcements = 0
        self.unread_announcements = 0
        # It forgets what the scheduler had, some time after the link broke.
        self.timer: Timer | None = None
        self._link = open_link(
            on_items=partial(on_items, self),
            on_up=lambda: None,
            on_down=partial(on_down, self),
        )
        self.send, self.send_now = self._link.send, self._link.send_now

    def close(self) -> None:
        """End the link for good."""
        self._link.close()

    def __str__(self) -> str:
        return f"the scheduler at {self.address}" if self.address else "the scheduler"
