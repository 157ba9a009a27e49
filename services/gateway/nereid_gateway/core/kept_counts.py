"""Counts of earlier processes of one gateway of a group.

A gateway that is killed is started again with its number, and its counters must not fall on the
group's page. Every shown value must be kept: it is written to the group's directory with each page.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class KeptCounts:
    """Counts that are read once, at the gateway's start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Counts by metric, and the value of its label.
        self._earlier: dict[str, Counter[str]] = {}
        self._shown: dict[str, Counter[str]] = {}
        # The file does not exist at the first start.
        with suppress(OSError, ValueError):
            document = json.loads(path.read_text())
            self._earlier = {name: Counter(counts) for name, counts in document.items()}

    def add_to(self, metric: str, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return a metric's counts of this and earlier processes, which are about to be shown."""
        total = self._earlier.get(metric, Counter[str]()) + Counter(counts)
        self._shown[metric] = total
        return total

    def save(self) -> None:
        """Write the shown counts. If the disk is full, a killed gateway loses them."""
        written = self._path.with_suffix(".new")
        with suppress(OSError):
            written.write_text(json.dumps(self._shown))
            written.replace(self._path)
