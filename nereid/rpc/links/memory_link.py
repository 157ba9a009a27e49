"""Links within one event loop. Items are passed on as objects, without encoding."""

from __future__ import annotations

from typing import Any

from nereid.rpc.links.link import Link, Out


class _MemoryLink(Link[Out]):
    """One of the two ends of a link in memory."""

    def __init__(self) -> None:
        super().__init__(_ignore, _nothing, _nothing)
        self._peer: _MemoryLink[Any] = self
        # The other end, if it goes first: its items are handed over before the items that this end
        # has sent in the same turn. `None` if this end goes first.
        self._precedent: _MemoryLink[Any] | None = None

    def connect(self, peer: _MemoryLink[Any], *, goes_first: bool) -> None:
        self._peer = peer
        self._precedent = None if goes_first else peer
        self.up = True
        self._loop.call_soon(self._report_up)

    def close(self) -> None:
        if self.up:
            self.hand_over()
            self._set_down()
            self._loop.call_soon(self._peer.on_peer_closed)

    def send_now(self, item: Out) -> None:
        if self._items:
            super().send_now(item)
        elif self.up:
            # Deliver the item at once, without a turn of the event loop. Nothing is buffered, so
            # nobody waits in drain().
            self._peer.receive_items([item])

    # --- for the other end

    def on_peer_closed(self) -> None:
        self._on_broken()

    def receive_items(self, items: list[Any]) -> None:
        if self.up:
            self._deliver(items)

    def hand_over(self) -> None:
        """Deliver the items that were sent at this end to the other end."""
        self._scheduled = False
        if self._items:
            items, self._items = self._items, []
            self._peer.receive_items(items)
        if self._drained:
            self._wake_drainers()

    # --- inside

    def _report_up(self) -> None:
        if self.up:
            self.on_up()

    def _flush(self) -> None:
        if self._precedent is not None and self._precedent.pending:
            self._precedent.hand_over()
        self.hand_over()


def memory_links() -> tuple[Link[Any], Link[Any]]:
    """Return the two ends of a link. Both are up; the client's end comes first.

    The owners have to set on_items, on_up and on_down of their ends within the same turn of the
    event loop.

    If both ends send within a turn, the client's items, which are requests, are handed over first:
    executors can work on them while the client reads responses.
    """
    one: _MemoryLink[Any] = _MemoryLink()
    other: _MemoryLink[Any] = _MemoryLink()
    one.connect(other, goes_first=True)
    other.connect(one, goes_first=False)
    return one, other


def _ignore(_items: list[Any]) -> None:
    pass


def _nothing() -> None:
    pass
