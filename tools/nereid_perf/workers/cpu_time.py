"""Reads how much CPU time this process has used, and how long it has waited for a CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_SCHEDULER: Final = Path("/proc/self/schedstat")


def cpu_times_s() -> tuple[float, float]:
    """Return the CPU seconds of all threads, and how long the main thread waited for a CPU.

    The second figure is 0 if the system does not say.
    """
    try:
        waited_ns = int(_SCHEDULER.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        waited_ns = 0
    return time.process_time(), waited_ns / 1e9
