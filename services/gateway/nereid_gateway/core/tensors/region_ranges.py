"""Ranges of registered shared memory, as a request names them."""

from __future__ import annotations

from typing import NamedTuple


class RegionRange(NamedTuple):
    """The range of a region that a request names for a tensor's data."""

    region: str
    offset: int
    size_bytes: int


class RegionRanges(NamedTuple):
    """Ranges that a request's head names: inputs by their position, outputs by their name."""

    inputs: tuple[tuple[int, RegionRange], ...]
    outputs: tuple[tuple[str, RegionRange], ...]
