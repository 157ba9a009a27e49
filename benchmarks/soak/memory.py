"""Memory of a process tree, and its linear growth. Linux only: reads /proc."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIELDS = {
    "Rss": "rss",
    "Pss": "pss",
    "Private_Clean": "uss",
    "Private_Dirty": "uss",
    "Anonymous": "anonymous",
}


@dataclass
class Memory:
    """Memory of one process, in KiB.

    uss: pages that no other process maps, including segments. anonymous: heaps and stacks.
    """

    rss: int = 0
    pss: int = 0
    uss: int = 0
    anonymous: int = 0


def memory_of(pid: int) -> Memory | None:
    """Return the memory of a process, or `None` if it has ended."""
    memory = Memory()
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            field = _FIELDS[name]
            setattr(memory, field, getattr(memory, field) + int(rest.split()[0]))
    return memory


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through the points; 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0


def growth_of(pieces: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the growth after the first tenth, for each process that ran all the time.

    pieces: for each piece of the load, the number of requests so far, and the memory of each
    process by name.
    """
    later = pieces[max(1, len(pieces) // 10) :]
    growth = {}
    for name, first in later[0]["memory"].items():
        if all(name in piece["memory"] for piece in later):
            points = [(piece["requests"], piece["memory"][name]["anonymous"]) for piece in later]
            last_kib = points[-1][1]
            growth[name] = {
                "anonymous_kib": first["anonymous"],
                "grown_kib": last_kib - first["anonymous"],
                "grown_percent": round(100 * (last_kib / max(1, first["anonymous"]) - 1), 2),
                "kib_per_100k_requests": round(slope(points) * 100_000, 1),
            }
    return growth
