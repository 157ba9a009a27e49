"""Counts of earlier processes of a gateway, for a gateway that belongs to a group.

A killed gateway starts again with the same number, and its counters must not decrease. So a gateway
saves the counts of each page, and a new process continues from them.
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
    """Counts of earlier processes, read once at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Key: a metric. Value: earlier counts by the value of the metric's label.
        self._earlier: dict[str, Counter[str]] = {}
        self._shown: dict[str, Counter[str]] = {}
        # The file does not exist at the first start.
        with suppress(OSError, ValueError):
            document = json.loads(path.read_text())
            self._earlier = {name: Counter(counts) for name, counts in document.items()}

    def add_to(self, metric: str, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the sum of a metric's counts in this and earlier processes, for save() too."""
        total = self._earlier.get(metric, Counter[str]()) + Counter(counts)
        self._shown[metric] = total
        return total

    def save(self) -> None:
        """Write the counts. If the disk is full, they are lost when the gateway is killed."""
        written = self._path.with_suffix(".new")
        with suppress(OSError):
            written.write_text(json.dumps(self._shown))
            written.replace(self._path)
