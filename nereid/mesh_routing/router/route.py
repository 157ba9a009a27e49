"""Link to one scheduler, and interfaces of what it is made of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import FromScheduler, ToScheduler


class SchedulerLink(Protocol):
    """The methods of a link (nereid.rpc.Link) that the router uses."""

    up: bool

    def send(self, item: ToScheduler, at_once: bool = False) -> None:
        """Send an item at the end of this turn of the event loop, or all pending items at once."""

    def close(self) -> None:
        """Close the link. It is not opened again."""


class OpenLink(Protocol):
    """Function that opens a link to the scheduler, either over a channel or in memory."""

    def __call__(
        self,
        *,
        on_items: Callable[[list[FromScheduler]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> SchedulerLink:
        """Open the link; on_up may be called before this method returns."""


class Timer(Protocol):
    """Handle of a scheduled call: an asyncio.TimerHandle or an equivalent."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


class Clock(Protocol):
    """The methods of an event loop that the router uses as its clock."""

    def time(self) -> float:
        """Return the time in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call a function when this clock reaches a time."""
        ...


class Route:
    """Link to one scheduler, with the link's state."""

    def __init__(
        self,
        address: str,
        open_link: OpenLink,
        on_items: Callable[[Route, list[FromScheduler]], None],
        on_down: Callable[[Route], None],
    ) -> None:
        """Open a link to an address, which is empty if the mesh has only one scheduler."""
        self.address = address
        # True after the scheduler's greeting: requests can be sent.
        self.up = False
        # True if the scheduler shares memory with this process.
        self.shares = False
        self._link = open_link(
            on_items=partial(on_items, self),
            on_up=lambda: None,
            on_down=partial(on_down, self),
        )
        self.send = self._link.send

    def close(self) -> None:
        """Close the link. It is not opened again."""
        self._link.close()

    def __str__(self) -> str:
        return f"the scheduler at {self.address}" if self.address else "the scheduler"
