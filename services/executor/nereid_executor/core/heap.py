"""The C heap of this process, in which loads and unloads of large models leave gaps."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Maximum seconds for which freed memory stays, and bytes after which it is returned at once.
_TRIM_INTERVAL_S: Final = 2.0
_MUCH_FREED: Final = 64 << 20
_LIBC: Final = ctypes.CDLL(None)
_MALLOC_TRIM: Final = getattr(_LIBC, "malloc_trim", None)
# The number of M_ARENA_MAX in glibc's mallopt().
_ARENA_MAX: Final = -8


class HeapTrim:
    """Returns freed memory to the system: much memory at once, a little memory later. Thread-safe.

    Returning memory takes milliseconds and delays allocations in other threads.
    """

    def __init__(
        self, trim: Callable[[], None] | None = None, interval_s: float = _TRIM_INTERVAL_S
    ) -> None:
        self._trim = trim or trim_heap
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._freed = 0
        self._due = False

    def on_freed(self, size: int) -> None:
        """Note that about this many bytes were freed; 0 stands for an unknown number."""
        with self._lock:
            self._freed += size
            at_once = self._freed >= _MUCH_FREED
            if at_once:
                self._freed = 0
            elif not self._due:
                self._due = True
                timer = threading.Timer(self._interval_s, self._on_due)
                timer.daemon = True
                timer.start()
        if at_once:
            self._trim()

    def _on_due(self) -> None:
        with self._lock:
            self._due = False
            self._freed = 0
        self._trim()


def trim_heap() -> None:
    """Return memory that C code has freed, such as an unloaded model's weights, to the system."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def limit_arenas(count: int) -> None:
    """Make all threads allocate from this many arenas.

    By default each thread has its own arena. Its pages go back to the system at each unload, and
    have to be cleared again for the next load.
    """
    # In other C libraries, mallopt may be missing or have another meaning.
    if _MALLOC_TRIM is not None:
        _LIBC.mallopt(_ARENA_MAX, count)
