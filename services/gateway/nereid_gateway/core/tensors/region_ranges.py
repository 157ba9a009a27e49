"""Ranges of registered shared memory, as a request names them."""

from __future__ import annotations

from typing import NamedTuple


class RegionRange(NamedTuple):
    """Where the data of a tensor is, as a request says it."""

    region: str
    offset: int
    size_bytes: int


class RegionRanges(NamedTuple):
    """The ranges that a request's head names: of inputs by position, of outputs by name."""

    inputs: tuple[tuple[int, RegionRange], ...]
    outputs: tuple[tuple[str, RegionRange], ...]
