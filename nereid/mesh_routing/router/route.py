"""The link to one scheduler, and the interfaces that a client of schedulers needs.

The process around it implements these.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import FromScheduler, ToScheduler
    from nereid.rpc import Channel


class SchedulerLink(Protocol):
    """Part of a link (nereid.rpc.Link) to the scheduler that is needed here."""

    up: bool

    def send(self, item: ToScheduler) -> None:
        """Enqueue an item; it is sent with the others of this turn of the event loop."""

    def send_now(self, item: ToScheduler) -> None:
        """Send an item and all enqueued items at once."""

    def close(self) -> None:
        """End the link for good."""


class OpenLink(Protocol):
    """Function that opens a link to the scheduler, over a channel or in memory."""

    def __call__(
        self,
        *,
        on_items: Callable[[list[FromScheduler]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> SchedulerLink:
        """Open the link; on_up may be called before this returns."""


class Timer(Protocol):
    """An asyncio.TimerHandle or an equivalent."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


class Clock(Protocol):
    """Part of an event loop that is needed here."""

    def time(self) -> float:
        """Return the time in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call a function at a time of this clock."""
        ...


class Schedulers(Protocol):
    """Access to the schedulers' addresses and links."""

    def watch(
        self,
        on_addresses: Callable[[list[str]], None],
        live_addresses: Callable[[], list[str]],
    ) -> None:
        """Call on_addresses with the addresses, at once or soon, and after every change.

        live_addresses: returns the addresses of connected schedulers; those that shut down come
            last.
        """

    def open_link(self, address: str) -> OpenLink:
        """Return a function that opens links to the scheduler at an address."""

    def close_channel(self, address: str) -> None:
        """Close the channel to an address that no longer has a scheduler."""


class MeshAccess(Schedulers, Protocol):
    """Access to the schedulers for one router and for control calls."""

    def channels(self) -> Sequence[Channel]:
        """Return channels for a call that any scheduler can serve, best first."""


class Route:
    """Link to one scheduler, with its state."""

    def __init__(
        self,
        address: str,
        open_link: OpenLink,
        on_items: Callable[[Route, list[FromScheduler]], None],
        on_down: Callable[[Route], None],
    ) -> None:
        """Open a link to an address, which is empty if there is only one scheduler."""
        self.address = address
        # True once the scheduler has greeted: requests can be sent.
        self.up = False
        # True if the scheduler shares memory with this process; domain of its memory.
        self.shares = False
        self.domain = ""
        # True if the address is no longer among the schedulers' addresses.
        self.retired = False
        # Number of announcements of owned models, before the frame that is being read and in it.
        self.announcements = 0
        self.unread_announcements = 0
        # Timer that forgets the scheduler's models some time after the link broke.
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
