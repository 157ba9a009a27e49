"""Links: long-lived streams whose frames carry many items.

All items that are sent within one turn of the event loop leave together.

    state    event                       next state, callback
    DOWN     the stream opened           UP, on_up
    UP       the stream ended or broke   DOWN, on_down
    DOWN     (dialled links only)        the stream is opened again after a back-off
    any      close()                     DOWN for good, no callback

A dialled link begins DOWN. An accepted link begins UP, and is not opened again once it is DOWN.
Items sent while a link is DOWN are dropped, and items in flight when the link breaks are lost. The
owner sends requests without a response again in on_up.
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
    """One end of a link: dialled, accepted or in memory. For the event loop's thread only."""

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
        """Number of items that have not been passed to the stream yet."""
        return len(self._items)

    def send(self, item: Out, at_once: bool = False) -> None:
        """Send an item at the end of this turn of the event loop; drop it if the link is down.

        at_once: send it now, with all pending items, because no other item follows in this turn. It
        is not keyword-only: parsing a keyword costs a compiled method as much as a call.
        """
        if self.up:
            self._items.append(item)
            if at_once:
                self._scheduled = True
                self._flush()
            elif not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._end_turn)

    def close(self) -> None:
        """Send pending items, then end the link. Only the other end calls on_down."""
        raise NotImplementedError

    def expect_end(self) -> None:
        """Note that the other end has said that it ends, so that its end is no failure."""

    async def drain(self) -> None:
        """Wait until everything that was sent has left this end, or until the link is down."""
        while self.up and self._has_unsent():
            done: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(done)
            await done

    def _has_unsent(self) -> bool:
        return bool(self._items)

    def _end_turn(self) -> None:
        self._flush()

    def _flush(self) -> None:
        raise NotImplementedError

    def _wake_drainers(self) -> None:
        waiting, self._drained = self._drained, []
        for done in waiting:
            if not done.done():
                done.set_result(None)

    def _deliver(self, items: list[Any]) -> None:
        try:
            self.on_items(items)
        except Exception:
            log.exception("receiver of a link failed; its items are lost: items=%d", len(items))

    def _on_broken(self) -> None:
        if self._set_down():
            self.on_down()

    def _set_down(self) -> bool:
        """Drop pending items, and return whether the link was up."""
        was_up, self.up = self.up, False
        self._items.clear()
        self._scheduled = False
        self._wake_drainers()
        return was_up
