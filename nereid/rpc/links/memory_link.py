"""Links within one event loop: a turn's items are handed over as the objects they are."""

from __future__ import annotations

from typing import Any

from nereid.rpc.links.link import Link, Out


class _MemoryLink(Link[Out]):
    """One of two ends."""

    def __init__(self) -> None:
        super().__init__(_ignore, _nothing, _nothing)
        self._peer: _MemoryLink[Any] = self

    def connect(self, peer: _MemoryLink[Any]) -> None:
        self._peer = peer
        self.up = True
        self._loop.call_soon(self._report_up)

    def close(self) -> None:
        if self.up:
            self._flush()
            self._set_down()
            self._loop.call_soon(self._peer.on_peer_closed)

    def send_now(self, item: Out) -> None:
        if self._items:
            super().send_now(item)
        elif self.up:
            # Nothing is buffered: no turn of the event loop, and nobody waits in drain().
            self._peer.receive_items([item])

    # --- for the other end

    def on_peer_closed(self) -> None:
        self._on_broken()

    def receive_items(self, items: list[Any]) -> None:
        if self.up:
            self._deliver(items)

    # --- inside

    def _report_up(self) -> None:
        if self.up:
            self.on_up()

    def _flush(self) -> None:
        self._scheduled = False
        if self._items:
            items, self._items = self._items, []
            self._peer.receive_items(items)
        if self._drained:
            self._wake_drainers()


def memory_links() -> tuple[Link[Any], Link[Any]]:
    """Two ends of a link, both up. The ends exist before their owners do: those set on_items, on_up
    and on_down within the same turn of the event loop.
    """
    one: _MemoryLink[Any] = _MemoryLink()
    other: _MemoryLink[Any] = _MemoryLink()
    one.connect(other)
    other.connect(one)
    return one, other


def _ignore(_items: list[Any]) -> None:
    pass


def _nothing() -> None:
    pass
