"""Levels of load in flags: start:end:step as in perf_analyzer, start:end:*factor, or a,b,..."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid_perf.measurement import LoadLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

CONCURRENCY: Final = "concurrency"
RATE: Final = "rate"

_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_MAX_LEVELS: Final = 10_000


@dataclass(frozen=True, slots=True)
class LevelRange:
    """Levels of load of one kind; end `None` means no end, `listed` replaces the range."""

    kind: str
    start: float
    end: float | None
    step: float
    is_geometric: bool = False
    listed: tuple[float, ...] = ()

    def levels(self) -> Iterator[LoadLevel]:
        """Yield the levels in order. A range without an end yields levels forever."""
        for value in self.listed:
            yield LoadLevel(self.kind, value)
        value, index = self.start, 0
        # The slack is for rounding: 0.1 added ten times is not exactly 1.
        while not self.listed and (self.end is None or value <= self.end * (1 + 1e-9)):
            yield LoadLevel(self.kind, self._whole(value))
            index += 1
            # Multiply, because rounding errors of repeated additions would add up.
            value = (
                self.start * self.step**index
                if self.is_geometric
                else (self.start + self.step * index)
            )

    def between(self, low: float, high: float) -> float:
        """Return the middle of two levels, for a binary search."""
        return self._whole((low + high) / 2)

    def _whole(self, value: float) -> float:
        return float(int(value + 1e-9)) if self.kind == CONCURRENCY else value


def parse_concurrency_range(text: str) -> LevelRange:
    """Parse a range of concurrencies; raise ValueError if the text is invalid."""
    return _parse(text, CONCURRENCY)


def parse_rate_range(text: str) -> LevelRange:
    """Parse a range of rates; raise ValueError if the text is invalid."""
    return _parse(text, RATE)


def _parse(text: str, kind: str) -> LevelRange:
    if "," in text:
        listed = tuple(_positive(part, kind) for part in text.split(","))
        return LevelRange(kind, listed[0], listed[-1], 1, listed=listed)
    first, *rest = text.split(":")
    if len(rest) > 2:
        raise ValueError("expected start, start:end, start:end:step, start:end:*factor or a list")
    start = _positive(first, kind)
    end = start if not rest else (_number(rest[0]) or None)
    if end is not None and end < start:
        raise ValueError(f"the end {rest[0]} is below the start {first}; 0 stands for no end")
    geometric = len(rest) == 2 and rest[1].startswith("*")
    step = _number(rest[1].removeprefix("*")) if len(rest) == 2 else 1.0
    if geometric and step < 1.01:
        raise ValueError("expected a factor of at least 1.01")
    if not geometric:
        step = _positive(rest[1], kind) if len(rest) == 2 else step
        if end is not None and (end - start) / step > _MAX_LEVELS:
            raise ValueError(f"more than {_MAX_LEVELS} levels: take a larger step")
    return LevelRange(kind, start, end, step, geometric)


def _positive(text: str, kind: str) -> float:
    value = _number(text)
    if value <= 0:
        raise ValueError(f"'{text}': expected a number above 0")
    if kind == CONCURRENCY and value != int(value):
        raise ValueError(f"'{text}': expected a whole number of requests in flight")
    return value


def _number(text: str) -> float:
    if _NUMBER.fullmatch(text.strip()) is None:
        raise ValueError(f"'{text}': expected a number")
    return float(text)
