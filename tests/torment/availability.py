"""How long models left their clients waiting: the longest interval without a success, by fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from tests.torment.disruptions import Occurrence
from tests.torment.history import Outcome, Request


@dataclass(frozen=True)
class Gap:
    """What is between two successes of one model, from when a client waits for the second."""

    model: str
    began_s: float
    ended_s: float
    # For how long requests were open in it.
    length_s: float

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
    """The intervals between the successes of each model, the longest first. When nobody has a
    request open does not count.
    """
    by_model: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        if request.outcome is not None:
            by_model[request.model].append(request)
    found = (gap for model, ours in by_model.items() for gap in _gaps_of(model, ours))
    return sorted(found, key=lambda gap: -gap.length_s)


def _gaps_of(model: str, requests: Iterable[Request]) -> Iterator[Gap]:
    begins = [(each.began_s, 1, False) for each in requests]
    ends = [(each.ended_s, -1, each.outcome is Outcome.OK) for each in requests]
    is_open, is_first = 0, True
    last_s, length_s, began_s = 0.0, 0.0, None
    for now_s, change, succeeded in sorted([*begins, *ends], key=itemgetter(0)):
        if is_open:
            length_s += now_s - last_s
        elif began_s is None:
            began_s = now_s
        is_open, last_s = is_open + change, now_s
        if succeeded:
            if not is_first:
                assert began_s is not None
                yield Gap(model, began_s, now_s, length_s)
            is_first, length_s = False, 0.0
            began_s = now_s if is_open else None


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
