"""How much CPU time this process took, and how long it waited for a CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_SCHEDULER: Final = Path("/proc/self/schedstat")


def cpu_times_s() -> tuple[float, float]:
    """Taken by all threads; and waited for by the main one (0: the system does not say)."""
    try:
        waited_ns = int(_SCHEDULER.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        waited_ns = 0
    return time.process_time(), waited_ns / 1e9
