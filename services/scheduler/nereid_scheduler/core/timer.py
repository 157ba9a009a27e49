"""Event loop timer whose deadline can be moved; setting the same deadline again costs nothing."""

# layout: compiled

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# The largest number that compiled code keeps in a register.
_NEVER: Final = (1 << 62) - 1


class RearmableTimer:
    """Call on_timer once per deadline. Times are monotonic nanoseconds."""

    def __init__(self, on_timer: Callable[[], None]) -> None:
        self._on_timer = on_timer
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self.at_ns = _NEVER

    def arm(self, at_ns: int | None, now_ns: int) -> None:
        """Set the deadline; `None` means never."""
        due_ns: int = _NEVER if at_ns is None else at_ns
        if due_ns == self.at_ns:
            return
        self.cancel()
        if due_ns != _NEVER:
            self.at_ns = due_ns
            self._handle = self._loop.call_later(max(0, due_ns - now_ns) / 1e9, self._fire)

    def cancel(self) -> None:
        """Clear the deadline."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self.at_ns = None, _NEVER

    def _fire(self) -> None:
        self._handle, self.at_ns = None, _NEVER
        self._on_timer()
