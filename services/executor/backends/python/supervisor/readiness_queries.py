"""Questions to a worker's model whether it is ready, from wherever, and what it says.

Asked from any thread; the instance's thread hands them over and hears the answers. Knows no worker:
only how to wake the thread that talks with it.
"""

from __future__ import annotations

import json
import logging
import threading
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    OnReady = Callable[[bool], None]

_log = logging.getLogger(__name__)


class Questions:
    """One instance's questions, whichever worker it has at the time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # None: there is no worker whose model could be asked.
        self._wake: Callable[[], None] | None = None
        self._numbers = count(1)
        self._new: list[int] = []
        self._open: dict[int, OnReady] = {}

    @property
    def welcome(self) -> bool:
        """Whether the model has something to say."""
        return self._wake is not None

    def open(self, wake: Callable[[], None]) -> None:
        """There is a worker whose model can be asked; wake its thread when it shall be."""
        with self._lock:
            self._wake = wake

    def close(self) -> None:
        """The worker ends, and is not ready any more; nobody is woken after this."""
        with self._lock:
            self._wake = None
            self._new.clear()
            left, self._open = self._open, {}
        for on_response in left.values():
            on_response(False)

    def ask(self, on_response: OnReady) -> None:
        """on_answer is called once, from any thread, or never if the model never answers."""
        with self._lock:
            if self._wake is not None:
                number = next(self._numbers)
                self._open[number] = on_response
                self._new.append(number)
                # Within the lock: close() shall not come between.
                self._wake()
                return
        on_response(False)

    def fetch(self) -> list[int]:
        """The numbers of those that the worker has not been asked yet."""
        with self._lock:
            new, self._new = self._new, []
        return new

    def hear(self, body: bytearray) -> None:
        """What the worker says; what makes no sense is passed over."""
        try:
            number, ready = json.loads(bytes(body))
            with self._lock:
                on_response = self._open.pop(number, None)
        except (ValueError, TypeError):
            _log.warning("a worker told of its readiness what makes no sense")
            return
        if on_response is not None:
            on_response(ready is True)
