"""Whether the machine itself stood still: a virtual machine that its host has paused runs nothing,
and every service of the mesh takes every other for hung at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tests.torment.disruptions import MACHINE_PAUSE, Disruption, Occurrence

# What a busy machine keeps a thread waiting is less, and what keepalive notices is more.
_SHORTEST_S: Final = 0.8
_PERIOD_S: Final = 0.05


class PauseWatch:
    """Notes each time at which a thread that should run every 50 ms did not for long."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.pauses: list[Occurrence] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        ending = threading.Event()
        thread = threading.Thread(target=self.watch, args=(ending.wait,), name="pause-watch")
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def watch(self, wait: Callable[[float], bool]) -> None:
        """Until wait(seconds) returns True."""
        last_s = self._now_s()
        while not wait(_PERIOD_S):
            now_s = self._now_s()
            if now_s - last_s >= _SHORTEST_S:
                self._note(last_s, now_s)
            last_s = now_s

    def _note(self, began_s: float, ended_s: float) -> None:
        number = len(self.pauses) + 1
        pause = Disruption(number, MACHINE_PAUSE, "", began_s, ended_s - began_s, 0.0)
        print(
            f"{ended_s:8.1f} s  the machine stood still for {ended_s - began_s:.1f} s", flush=True
        )
        self.pauses.append(Occurrence(pause, began_s, ended_s))
