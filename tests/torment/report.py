"""What a campaign prints at its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from tests.torment import availability, contract
from tests.torment.checker import Evidence, Violation
from tests.torment.history import Outcome
from tests.torment.shapes import Load


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
        elif request.outcome not in {None, Outcome.TIMEOUT}:
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
    contract.DEADLINE,
    contract.CANCELLED,
]


def load_table(evidence: Evidence, load: Load) -> str:
    """By shape: how many requests there were and how many were open, of clients and at gateways.

    A request is counted where it began. What a client has open but no gateway is in sockets, or in
    the client's process if that is as busy as one core can be.
    """
    last_s = max((each.ended_s for each in evidence.history.requests.values()), default=0.0)
    seconds: dict[str, float] = defaultdict(float)
    for phase in load.timeline.made:
        length_s = min(phase.end_s, last_s - load.begin_s) - phase.begin_s
        for shape in phase.shapes:
            seconds[shape] += max(0.0, length_s)
    requests: dict[str, float] = defaultdict(float)
    client_s: dict[str, float] = defaultdict(float)
    gateway_s: dict[str, float] = defaultdict(float)
    for request in evidence.history.requests.values():
        for shape in load.phase_at(request.began_s).shapes:
            requests[shape] += 1
            client_s[shape] += request.ended_s - request.began_s
    for (began_s, pending), (ended_s, _) in pairwise(load.pending):
        for shape in load.phase_at(began_s).shapes:
            gateway_s[shape] += pending * (ended_s - began_s)
    rows: list[list[object]] = [["load", "s", "requests/s", "open, of clients", "at gateways"]]
    rows += [
        [
            shape,
            f"{length_s:.0f}",
            *(f"{count[shape] / length_s:.0f}" for count in (requests, client_s, gateway_s)),
        ]
        for shape, length_s in seconds.items()
        if length_s >= 1
    ]
    busy = ", ".join(f"{cpu_s / (last_s - load.begin_s):.0%}" for cpu_s in load.cpu_s.values())
    stalled = ", ".join(f"{stalled_s:.1f} s" for stalled_s in load.stalled_s.values())
    return (
        f"{table(rows)}\nThe client processes used so much of a core: {busy}; they stood still for"
        f" up to {stalled}"
    )


def disruptions_table(evidence: Evidence) -> str:
    """By kind of fault: how often, and the longest interval without a success of a model, of the
    time in which clients waited for one.
    """
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
