"""Links within one event loop. Items are passed on as objects, without encoding."""

from __future__ import annotations

from typing import Any

from nereid.rpc.links.link import Link, Out


class _MemoryLink(Link[Out]):
    def __init__(self) -> None:
        super().__init__(_ignore, _nothing, _nothing)
        self._peer: _MemoryLink[Any] = self
        # True if the other end's items are handed over first at the end of a turn.
        self._peer_goes_first = False

    def connect(self, peer: _MemoryLink[Any], *, goes_first: bool) -> None:
        self._peer = peer
        self._peer_goes_first = not goes_first
        self.up = True
        self._loop.call_soon(self._report_up)

    def close(self) -> None:
        if self.up:
            self.hand_over()
            self._set_down()
            self._loop.call_soon(self._peer.on_peer_closed)

    def on_peer_closed(self) -> None:
        self._on_broken()

    def receive_items(self, items: list[Any]) -> None:
        if self.up:
            self._deliver(items)

    def hand_over(self) -> None:
        self._scheduled = False
        if self._items:
            items, self._items = self._items, []
            self._peer.receive_items(items)
        if self._drained:
            self._wake_drainers()

    def _report_up(self) -> None:
        if self.up:
            self.on_up()

    def _end_turn(self) -> None:
        if self._peer_goes_first and self._peer.pending:
            self._peer.hand_over()
        self.hand_over()

    def _flush(self) -> None:
        self.hand_over()


def memory_links() -> tuple[Link[Any], Link[Any]]:
    """Return the two ends of a link, both up; the client's end comes first.

    Set on_items, on_up and on_down within the same turn. The client's items are handed over first,
    so that executors can work while the client reads responses.
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
