"""Counts of a process that compares, as its owner keeps them in case the process is killed."""

from __future__ import annotations

from typing import NamedTuple

# Name of a part of a tally, and its pickled content: the owner needs no numpy to keep it.
Parts = dict[tuple[str, ...], bytes]


class Checkpoint(NamedTuple):
    """Changes of a tally since the last checkpoint.

    settled: number of messages by model that need no further comparison. settled_through: those
    with this number or a smaller one are among them; 0 if messages have no numbers.
    """

    settled: dict[str, int]
    parts: Parts
    settled_through: int = 0
