"""Several schedulers whose links end in the test, and a clock that the test moves."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

from tests.support.mesh.fake_link import FakeLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.mesh_routing.router.route import OpenLink


class FakeTimer:
    """A callback that the clock calls, unless it is cancelled."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Time passes in advance() alone."""

    def __init__(self) -> None:
        self._now = 100.0
        self._numbers = count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None], /) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Call what is due meanwhile."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self._now = end


class FakeSchedulers:
    """A mesh_router.Schedulers. Links come up when the test says so."""

    def __init__(self) -> None:
        # The last link to each address.
        self.links: dict[str, FakeLink] = {}
        self.closed_channels: list[str] = []
        self.set_addresses: Callable[[list[str]], None]

    def watch(self, on_addresses: Callable[[list[str]], None], _: object) -> None:
        self.set_addresses = on_addresses

    def open_link(self, address: str) -> OpenLink:
        link = self.links[address] = FakeLink()
        return link.open

    def close_channel(self, address: str) -> None:
        self.closed_channels.append(address)
