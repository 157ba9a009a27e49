"""Asks a worker whether its model is ready, and passes the response on."""

from __future__ import annotations

import json
import logging
import threading
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    OnReady = Callable[[bool | None], None]

_log = logging.getLogger(__name__)


class ReadinessQueries:
    """The queries of one instance. They outlive a worker that is replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Wakes the instance's thread; `None` while there is no worker whose model has is_ready().
        self._wake: Callable[[], None] | None = None
        self._numbers = count(1)
        self._unsent: list[int] = []
        self._pending: dict[int, OnReady] = {}

    @property
    def enabled(self) -> bool:
        """True if there is a model to query."""
        return self._wake is not None

    def enable(self, wake: Callable[[], None]) -> None:
        """Accept queries. `wake` wakes the thread that communicates with the worker."""
        with self._lock:
            self._wake = wake

    def disable(self) -> None:
        """Respond with False to all queries, because the worker ends. Do not call wake again."""
        with self._lock:
            self._wake = None
            self._unsent.clear()
            pending, self._pending = self._pending, {}
        for on_response in pending.values():
            on_response(False)

    def submit_query(self, on_response: OnReady) -> None:
        """Ask the model whether it is ready.

        Any thread calls on_response: with None when the worker has the query, then with the
        response. The second call never comes if the model hangs.
        """
        with self._lock:
            if self._wake is not None:
                number = next(self._numbers)
                self._pending[number] = on_response
                self._unsent.append(number)
                # The lock keeps disable() from running in between.
                self._wake()
                return
        on_response(False)

    def pop_unsent(self) -> list[int]:
        """Return the numbers of the queries that are not yet sent, and count them as sent."""
        with self._lock:
            unsent, self._unsent = self._unsent, []
        return unsent

    def on_ready(self, body: bytearray) -> None:
        """Handle the worker's response to a query. A malformed response is logged and dropped."""
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
