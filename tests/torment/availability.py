"""How long models served nobody: the longest interval without a success, by kind of fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.torment.disruptions import Occurrence
from tests.torment.history import Outcome, Request


@dataclass(frozen=True)
class Gap:
    """An interval between two successes of one model."""

    model: str
    began_s: float
    ended_s: float

    @property
    def length_s(self) -> float:
        return self.ended_s - self.began_s

    def overlaps(self, other: Occurrence) -> bool:
        return other.began_s < self.ended_s and self.began_s < other.ended_s


@dataclass(frozen=True)
class Row:
    """What faults of one kind did: how often there was one, and the longest gap that one overlaps.

    Faults that come together lengthen each other's gaps: `alone` is the longest gap that no other
    fault overlaps.
    """

    count: int
    longest: Gap | None
    alone: Gap | None


def gaps(requests: Iterable[Request]) -> list[Gap]:
    """The intervals between the successes of each model, the longest first."""
    successes: dict[str, list[float]] = defaultdict(list)
    for request in requests:
        if request.outcome is Outcome.OK:
            successes[request.model].append(request.ended_s)
    found = []
    for model, times in successes.items():
        times.sort()
        found += [Gap(model, *pair) for pair in pairwise(times)]
    return sorted(found, key=lambda gap: -gap.length_s)


def by_kind(found: Sequence[Gap], occurrences: Sequence[Occurrence]) -> dict[str, Row]:
    """A row for each kind of fault; gaps are as from gaps()."""
    rows = {}
    for kind in sorted({each.disruption.kind for each in occurrences}):
        ours = [each for each in occurrences if each.disruption.kind == kind]
        longest = next((gap for gap in found if any(map(gap.overlaps, ours))), None)
        alone = next(
            (
                gap
                for gap in found
                if any(map(gap.overlaps, ours)) and sum(map(gap.overlaps, occurrences)) == 1
            ),
            None,
        )
        rows[kind] = Row(len(ours), longest, alone)
    return rows


def quiet_gap(found: Sequence[Gap], occurrences: Sequence[Occurrence]) -> Gap | None:
    """The longest interval that no fault overlaps: what load and machine alone cause."""
    return next((gap for gap in found if not any(map(gap.overlaps, occurrences))), None)
