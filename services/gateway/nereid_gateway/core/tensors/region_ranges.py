"""Ranges of registered shared memory that a request names."""

from __future__ import annotations

from typing import NamedTuple


class RegionRange(NamedTuple):
    """Range of a region that holds the data of a tensor."""

    region: str
    offset: int
    size_bytes: int


class RegionRanges(NamedTuple):
    """Ranges that the head of a request names.

    Each range of an input comes with the input's position, each range of an output with the
    output's name.
    """

    inputs: tuple[tuple[int, RegionRange], ...]
    outputs: tuple[tuple[str, RegionRange], ...]
