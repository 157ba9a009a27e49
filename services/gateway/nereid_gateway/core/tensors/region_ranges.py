"""Ranges of registered shared memory that a request names."""

from __future__ import annotations

from typing import NamedTuple


class RegionRange(NamedTuple):
    """Range of a region that holds the data of a tensor."""

    region: str
    offset: int
    size_bytes: int


class RegionRanges(NamedTuple):
    """Ranges that a request names: of inputs by position, and of outputs by name."""

    inputs: tuple[tuple[int, RegionRange], ...]
    outputs: tuple[tuple[str, RegionRange], ...]
