"""Queries whether a worker's model is ready, and what it responds.

Made from any thread; the instance's thread sends them and receives the responses. Knows no worker:
only how to wake the thread that talks to it.
"""

from __future__ import annotations

import json
import logging
import threading
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    # As of ReadinessReporter.query_readiness.
    OnReady = Callable[[bool | None], None]

_log = logging.getLogger(__name__)


class ReadinessQueries:
    """One instance's queries, whichever worker it has at the time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # None: there is no worker whose model has is_ready().
        self._wake: Callable[[], None] | None = None
        self._numbers = count(1)
        self._unsent: list[int] = []
        self._pending: dict[int, OnReady] = {}

    @property
    def enabled(self) -> bool:
        """Whether there is a model to query."""
        return self._wake is not None

    def enable(self, wake: Callable[[], None]) -> None:
        """There is a model to query; wake: wakes the thread that talks to its worker."""
        with self._lock:
            self._wake = wake

    def disable(self) -> None:
        """The worker ends, so its model is not ready; wake is not called after this."""
        with self._lock:
            self._wake = None
            self._unsent.clear()
            pending, self._pending = self._pending, {}
        for on_response in pending.values():
            on_response(False)

    def submit_query(self, on_response: OnReady) -> None:
        """on_response is called from any thread: with None when the worker has the query, then with
        the model's response, or never if it hangs.
        """
        with self._lock:
            if self._wake is not None:
                number = next(self._numbers)
                self._pending[number] = on_response
                self._unsent.append(number)
                # Within the lock: disable() must not come between.
                self._wake()
                return
        on_response(False)

    def pop_unsent(self) -> list[int]:
        """The numbers of the queries to send to the worker."""
        with self._lock:
            unsent, self._unsent = self._unsent, []
        return unsent

    def on_ready(self, body: bytearray) -> None:
        """The worker's response to a query; a malformed one is logged and dropped."""
        try:
            number, ready = json.loads(bytes(body))
            with self._lock:
                find = self._pending.get if ready is None else self._pending.pop
                on_response = find(number, None)
        except (ValueError, TypeError):
            _log.warning("a worker sent a malformed response to a readiness query; dropped")
            return
        if on_response is not None:
            on_response(None if ready is None else ready is True)
