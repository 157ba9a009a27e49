"""One timer of the event loop's that is set anew all the time, mostly to what it is set to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_NEVER: Final = 1 << 63


class Alarm:
    """Calls on_time once it is time; times are monotonic nanoseconds."""

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._on_time = on_time
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._at_ns = _NEVER

    def set(self, at_ns: int | None, now_ns: int) -> None:
        """None: there is nothing to wake up for."""
        at_ns = _NEVER if at_ns is None else at_ns
        if at_ns == self._at_ns:
            return
        self.cancel()
        if at_ns != _NEVER:
            self._at_ns = at_ns
            self._handle = self._loop.call_later(max(0, at_ns - now_ns) / 1e9, self._ring)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._at_ns = None, _NEVER

    def _ring(self) -> None:
        self._handle, self._at_ns = None, _NEVER
        self._on_time()
