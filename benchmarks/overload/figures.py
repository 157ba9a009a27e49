"""Computes figures from the outcomes of requests.

The module holds no state and does no I/O.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.overload.clients import SERVED, Outcome

# Share of the mean rate in the phase before that counts as recovered.
_RECOVERED = 0.95


@dataclass(frozen=True)
class Phase:
    """Phase of the run; `times`: offered load as a multiple of the capacity.

    since_s, until_s: start and end in seconds since the start of the run.
    """

    name: str
    times: float
    since_s: float
    until_s: float


def figures_of(
    outcomes: Sequence[Outcome], phases: Sequence[Phase], capacity: float
) -> dict[str, Any]:
    """Return figures for each phase and for each second, by the times of sending."""
    by_phase = {phase.name: _figures(outcomes, phase, capacity) for phase in phases}
    last = phases[-1]
    return {
        "capacity_per_s": round(capacity, 1),
        "phases": by_phase,
        "recovery_s": _recovery_s(outcomes, last),
        "seconds": _seconds(outcomes, capacity),
    }


def quantile_ms(latencies_s: Sequence[float], part: float) -> float | None:
    """Return a quantile in ms, or `None` without latencies."""
    if not latencies_s:
        return None
    return round(1000 * sorted(latencies_s)[int(part * (len(latencies_s) - 1))], 1)


def _figures(outcomes: Sequence[Outcome], phase: Phase, capacity: float) -> dict[str, Any]:
    seconds = phase.until_s - phase.since_s
    sent = [outcome for outcome in outcomes if phase.since_s <= outcome.sent_s < phase.until_s]
    # A response counts when it came, as capacity does: it is what the mesh did in this time.
    ended = [
        outcome
        for outcome in outcomes
        if outcome.kind == SERVED
        and phase.since_s <= outcome.sent_s + outcome.latency_s < phase.until_s
    ]
    refused = [outcome for outcome in sent if outcome.kind == "refused"]
    return {
        "offered_per_capacity": round(len(sent) / seconds / capacity, 2),
        "goodput_per_capacity": round(len(ended) / seconds / capacity, 3),
        "urgent_goodput_per_capacity": round(
            sum(outcome.urgent for outcome in ended) / seconds / capacity, 3
        ),
        "kinds": dict(Counter(outcome.kind for outcome in sent)),
        "with_retry_hint": sum(outcome.has_hint for outcome in refused),
        "served_part_of_urgent": _part(
            [outcome.kind == SERVED for outcome in sent if outcome.urgent]
        ),
        "p99_ms": {
            name: quantile_ms(
                [
                    outcome.latency_s
                    for outcome in sent
                    if outcome.kind == SERVED and outcome.urgent is urgent
                ],
                0.99,
            )
            for name, urgent in (("urgent", True), ("ordinary", False))
        },
        "p99_ms_of_refusals": quantile_ms([outcome.latency_s for outcome in refused], 0.99),
    }


def _part(which: Sequence[bool]) -> float | None:
    return round(sum(which) / len(which), 3) if which else None


def _recovery_s(outcomes: Sequence[Outcome], phase: Phase) -> float | None:
    """Return the seconds from the overload's end until nearly all is served, or `None`."""
    sent = sorted(
        (outcome.sent_s, outcome.kind == SERVED)
        for outcome in outcomes
        if outcome.sent_s >= phase.since_s
    )
    served = sum(good for _, good in sent)
    for index, (sent_s, good) in enumerate(sent):
        if served >= _RECOVERED * (len(sent) - index):
            return round(sent_s - phase.since_s, 2)
        served -= good
    return None


def _seconds(outcomes: Sequence[Outcome], capacity: float) -> list[dict[str, Any]]:
    """Return each second's goodput, and the latency of requests sent in it and served."""
    ended = Counter(
        int(outcome.sent_s + outcome.latency_s) for outcome in outcomes if outcome.kind == SERVED
    )
    by_second: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        by_second.setdefault(int(outcome.sent_s), []).append(outcome)
    return [
        {
            "second": second,
            "offered_per_capacity": round(len(sent) / capacity, 2),
            "goodput_per_capacity": round(ended[second] / capacity, 3),
            "p99_ms": quantile_ms(
                [outcome.latency_s for outcome in sent if outcome.kind == SERVED], 0.99
            ),
        }
        for second, sent in sorted(by_second.items())
    ]
