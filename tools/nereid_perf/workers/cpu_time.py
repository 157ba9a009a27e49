"""Reads how much CPU time this process has used, and how long it has waited for a CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_SCHEDULER: Final = Path("/proc/self/schedstat")


def cpu_times_s() -> tuple[float, float]:
    """Return all threads' CPU seconds, and the main thread's wait for a CPU (0 if unknown)."""
    try:
        waited_ns = int(_SCHEDULER.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        waited_ns = 0
    return time.process_time(), waited_ns / 1e9
