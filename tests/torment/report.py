"""What a campaign prints at its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.torment import availability, contract
from tests.torment.checker import Evidence, Violation
from tests.torment.history import Outcome


def table(rows: Sequence[Sequence[object]]) -> str:
    """The first row is the head; all but the first column are aligned to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    )


def requests_table(evidence: Evidence) -> str:
    """By model: how the requests ended."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for request in evidence.history.requests.values():
        ours = counts[request.model]
        ours["requests"] += 1
        if request.outcome is Outcome.OK:
            ours["right" if request.retry_of is None else "right, again"] += 1
        elif request.outcome in {Outcome.ERROR, Outcome.DISCONNECTED}:
            failure = contract.kind_of_failure(request)
            ours[failure if failure in _FAILURES else "other"] += 1
        else:
            ours["lost"] += 1
    columns = ["requests", "right", "right, again", *_FAILURES, "other", "lost"]
    rows = [[name, *(counts[name][each] for each in columns)] for name in sorted(counts)]
    total = sum(counts.values(), Counter())
    return table([["model", *columns], *rows, ["all", *(total[each] for each in columns)]])


_FAILURES = [
    contract.UNAVAILABLE,
    contract.ABORTED,
    contract.INTERNAL,
    contract.NOT_STARTED,
    contract.DISCONNECTED,
]


def disruptions_table(evidence: Evidence) -> str:
    """By kind of fault: how often, and the longest interval without a success of a model."""
    found = availability.gaps(evidence.history.requests.values())
    quiet = availability.quiet_gap(found, evidence.occurrences)
    rows: list[list[object]] = [
        ["fault", "times", "longest without success", "with no other fault"]
    ]
    rows.append(["none", "", _shown(quiet), ""])
    for kind, row in availability.by_kind(found, evidence.occurrences).items():
        rows.append([kind, row.count, _shown(row.longest), _shown(row.alone)])
    return table(rows)


def _shown(gap: availability.Gap | None) -> str:
    return f"{gap.length_s:.1f} s ({gap.model})" if gap else "-"


def violations_text(violations: Sequence[Violation], limit: int = 20) -> str:
    counts = Counter(each.rule for each in violations)
    lines = [f"{count} x {rule}" for rule, count in counts.most_common()]
    lines += map(str, violations[:limit])
    return "\n".join(lines)
