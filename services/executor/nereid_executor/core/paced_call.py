"""A call that is requested by many events, but is made at most once per interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class PacedCall:
    """Makes a call some time after it was requested, at most once per interval."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[], None],
        *,
        delay_s: float,
        interval_s: float,
    ) -> None:
        self._loop, self._call = loop, call
        self._delay_s, self._interval_s = delay_s, interval_s
        self._due = False
        self._earliest_s = 0.0

    def schedule(self) -> None:
        """Request the call; called on the event loop."""
        if not self._due:
            self._due = True
            due_s = max(self._loop.time() + self._delay_s, self._earliest_s)
            self._loop.call_at(due_s, self._run)

    def _run(self) -> None:
        self._due = False
        self._earliest_s = self._loop.time() + self._interval_s
        self._call()
