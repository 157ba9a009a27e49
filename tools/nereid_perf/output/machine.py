"""Describes the machine that this process runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from nereid_perf.output.result import Machine


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """Return the facts about this machine that readers of results need."""
    return Machine(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(cpuinfo),
        cpus=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
    )


def _processor(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
