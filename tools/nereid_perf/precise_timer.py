"""A timer that is precise to microseconds on Linux. Event loops round to milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_NONBLOCK: Final = 0o4000
_CLOEXEC: Final = 0o2000000
_NS: Final = 1_000_000_000


class _Timerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class PreciseTimer:
    """A timer of the running loop; it fires once, at the monotonic time that was set last."""

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_time = on_time
        self._spec = _Timerspec()
        self._descriptor = -1
        self._handle: asyncio.TimerHandle | None = None
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
            self._set_time = libc.timerfd_settime
            self._pointer = ctypes.byref(self._spec)
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._on_readable)

    def set_ns(self, time_ns: int) -> None:
        """Set the time; if it has passed, the timer fires in the loop's next turn."""
        if self._descriptor >= 0:
            spec = self._spec
            # Zero would switch the timer off.
            spec.value_s, spec.value_ns = divmod(max(1, time_ns), _NS)
            self._set_time(self._descriptor, _ABSOLUTE, self._pointer, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later((time_ns - monotonic_ns()) / _NS, self._on_time)

    def cancel(self) -> None:
        """Cancel the timer; it does not fire until it is set again."""
        if self._descriptor >= 0:
            self._spec.value_s = self._spec.value_ns = 0
            self._set_time(self._descriptor, _ABSOLUTE, self._pointer, None)
        elif self._handle is not None:
            self._handle.cancel()

    def close(self) -> None:
        """Release the timer; it does not fire any more."""
        self.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_readable(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            # The timer was set again after it had fired.
            return
        self._on_time()
