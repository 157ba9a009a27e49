"""Figures of what clients saw. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.overload.clients import SERVED, Outcome

# Of the mean rate in the phase before, to have recovered.
_RECOVERED = 0.95


@dataclass(frozen=True)
class Phase:
    """times are seconds since the start of the run; times of capacity were offered."""

    name: str
    times: float
    since_s: float
    until_s: float


def figures_of(
    outcomes: Sequence[Outcome], phases: Sequence[Phase], capacity: float
) -> dict[str, Any]:
    """By phase, in which requests were sent; and by second."""
    by_phase = {each.name: _figures(outcomes, each, capacity) for each in phases}
    last = phases[-1]
    return {
        "capacity_per_s": round(capacity, 1),
        "phases": by_phase,
        "recovery_s": _recovery_s(outcomes, last),
        "seconds": _seconds(outcomes, capacity),
    }


def quantile_ms(latencies_s: Sequence[float], part: float) -> float | None:
    """None: there are none."""
    if not latencies_s:
        return None
    return round(1000 * sorted(latencies_s)[int(part * (len(latencies_s) - 1))], 1)


def _figures(outcomes: Sequence[Outcome], phase: Phase, capacity: float) -> dict[str, Any]:
    seconds = phase.until_s - phase.since_s
    sent = [each for each in outcomes if phase.since_s <= each.sent_s < phase.until_s]
    # Counted when it came, as capacity is: what the mesh did in this time.
    ended = [
        each
        for each in outcomes
        if each.kind == SERVED and phase.since_s <= each.sent_s + each.latency_s < phase.until_s
    ]
    refused = [each for each in sent if each.kind == "refused"]
    return {
        "offered_per_capacity": round(len(sent) / seconds / capacity, 2),
        "goodput_per_capacity": round(len(ended) / seconds / capacity, 3),
        "urgent_goodput_per_capacity": round(
            sum(each.urgent for each in ended) / seconds / capacity, 3
        ),
        "kinds": dict(Counter(each.kind for each in sent)),
        "with_retry_hint": sum(each.has_hint for each in refused),
        "served_part_of_urgent": _part([each.kind == SERVED for each in sent if each.urgent]),
        "p99_ms": {
            name: quantile_ms(
                [each.latency_s for each in sent if each.kind == SERVED and each.urgent is urgent],
                0.99,
            )
            for name, urgent in (("urgent", True), ("ordinary", False))
        },
        "p99_ms_of_refusals": quantile_ms([each.latency_s for each in refused], 0.99),
    }


def _part(which: Sequence[bool]) -> float | None:
    return round(sum(which) / len(which), 3) if which else None


def _recovery_s(outcomes: Sequence[Outcome], phase: Phase) -> float | None:
    """From the end of the overload until nearly all that is sent is served; None: never."""
    sent = sorted(
        (each.sent_s, each.kind == SERVED) for each in outcomes if each.sent_s >= phase.since_s
    )
    served = sum(good for _, good in sent)
    for index, (sent_s, good) in enumerate(sent):
        if served >= _RECOVERED * (len(sent) - index):
            return round(sent_s - phase.since_s, 2)
        served -= good
    return None


def _seconds(outcomes: Sequence[Outcome], capacity: float) -> list[dict[str, Any]]:
    """Goodput in each second, and the latency of what was sent in it and served."""
    ended = Counter(int(each.sent_s + each.latency_s) for each in outcomes if each.kind == SERVED)
    by_second: dict[int, list[Outcome]] = {}
    for each in outcomes:
        by_second.setdefault(int(each.sent_s), []).append(each)
    return [
        {
            "second": second,
            "offered_per_capacity": round(len(sent) / capacity, 2),
            "goodput_per_capacity": round(ended[second] / capacity, 3),
            "p99_ms": quantile_ms([each.latency_s for each in sent if each.kind == SERVED], 0.99),
        }
        for second, sent in sorted(by_second.items())
    ]
