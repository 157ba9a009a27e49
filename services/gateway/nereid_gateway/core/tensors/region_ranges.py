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

    Inputs have their position, outputs have their name.
    """

    inputs: tuple[tuple[int, RegionRange], ...]
    outputs: tuple[tuple[str, RegionRange], ...]
