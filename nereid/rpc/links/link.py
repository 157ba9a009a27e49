"""Links: many items to a frame, on one long-lived stream.

What is sent within one turn of the event loop leaves together. There are no timers. A link knows
nothing of what its items mean.

    state    event                       next state, callback
    DOWN     the stream opened           UP, on_up
    UP       the stream ended or broke   DOWN, on_down
    DOWN     (dialled links only)        the stream is opened again after a back-off
    any      close()                     DOWN for good, no callback

A dialled link begins DOWN; an accepted one begins UP, and DOWN is final. What is sent while a link
is DOWN is dropped, and what was in flight when it broke is lost: the owner, which alone knows which
requests have no response yet, sends those again on_up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("nereid.rpc")

Out = TypeVar("Out")


class Link(Generic[Out]):
    """One end of a link, of either kind. Used from the event loop's thread only."""

    def __init__(
        self,
        on_items: Callable[[list[Any]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self.up = False
        self.on_items = on_items
        self.on_up = on_up
        self.on_down = on_down
        self._loop = asyncio.get_running_loop()
        self._items: list[Out] = []
        self._scheduled = False
        self._drained: list[asyncio.Future[None]] = []

    @property
    def pending(self) -> int:
        """Items not yet handed to the stream."""
        return len(self._items)

    def send(self, item: Out) -> None:
        if self.up:
            self._items.append(item)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._flush)

    def send_now(self, item: Out) -> None:
        """Send, and hand over at once all that was sent, for an owner that knows that nothing more
        is coming.
        """
        if self.up:
            self._items.append(item)
            self._scheduled = True
            self._flush()

    def close(self) -> None:
        """Send what is pending, then end the link; on_down is called at the other end only."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait until everything sent has left, or the link is down."""
        while self.up and self._has_unsent():
            done: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(done)
            await done

    def _has_unsent(self) -> bool:
        return bool(self._items)

    def _flush(self) -> None:
        raise NotImplementedError

    def _wake_drainers(self) -> None:
        """Each checks by itself whether it is done."""
        waiting, self._drained = self._drained, []
        for done in waiting:
            if not done.done():
                done.set_result(None)

    def _deliver(self, items: list[Any]) -> None:
        try:
            self.on_items(items)
        except Exception:
            log.exception(
                "a link's receiver failed; what it was given is lost: items=%d", len(items)
            )

    def _on_broken(self) -> None:
        """The stream broke, or the other end closed it."""
        if self._set_down():
            self.on_down()

    def _set_down(self) -> bool:
        """Drop what is pending; returns whether the link was up."""
        was_up, self.up = self.up, False
        self._items.clear()
        self._scheduled = False
        self._wake_drainers()
        return was_up
