"""Asks the questions that the settings contain, with a callable that measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid_perf.questions.comparison import ROUNDS, compare, compare_results
from nereid_perf.questions.conditions import violations
from nereid_perf.questions.max_rate import find_max_rate
from nereid_perf.questions.question import resolve
from nereid_perf.questions.sweep import binary_search, repeat, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid_perf.measurement import Measurement
    from nereid_perf.questions.comparison import Comparison, Turn
    from nereid_perf.questions.levels import LevelRange
    from nereid_perf.questions.max_rate import MaxRate
    from nereid_perf.questions.question import Measure
    from nereid_perf.questions.settings import QuestionSettings


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings about one server, or about A and B; `sides` has each server's measurements."""

    sides: tuple[tuple[Measurement, ...], ...]
    max_rate: MaxRate | None = None
    comparisons: tuple[Comparison, ...] = ()
    violations: tuple[str, ...] = ()


def ask(settings: QuestionSettings, measure: Measure, levels: LevelRange | None = None) -> Findings:
    """Ask about one server; `levels` (of a trace, for example) replaces the settings' ranges."""
    if settings.find_max_rate:
        return _ask_max_rate(settings, measure)
    levels, threshold = levels or settings.levels, settings.threshold
    if settings.binary_search:
        assert threshold is not None, "settings.errors() says so"
        measurements = resolve(binary_search(levels, threshold), measure)
    elif settings.rounds > 1:
        measurements = resolve(repeat(levels, settings.rounds), measure)
    else:
        measurements = resolve(sweep(levels, threshold), measure)
    return Findings(
        (tuple(measurements),), violations=tuple(violations(settings.conditions, measurements))
    )


def ask_comparison(
    settings: QuestionSettings,
    measure: Callable[[Turn], Measurement],
    levels: LevelRange | None = None,
) -> Findings:
    """Ask about two servers, A and B; turn.side says which server to measure."""
    sides: tuple[list[Measurement], list[Measurement]] = ([], [])

    def measure_and_keep(turn: Turn) -> Measurement:
        measurement = measure(turn)
        sides[turn.side].append(measurement)
        return measurement

    chosen = (levels or settings.levels).levels()
    question = compare(chosen, settings.rounds or ROUNDS, settings.confidence)
    comparisons = resolve(question, measure_and_keep)
    return _compared(settings, sides, comparisons)


def ask_results(
    settings: QuestionSettings, a: Sequence[Measurement], b: Sequence[Measurement]
) -> Findings:
    """Ask about two earlier results; raise ValueError if they have no level in common."""
    return _compared(settings, (a, b), compare_results(a, b, settings.confidence))


def _compared(
    settings: QuestionSettings,
    sides: tuple[Sequence[Measurement], Sequence[Measurement]],
    comparisons: tuple[Comparison, ...],
) -> Findings:
    # A is the reference, so conditions that are not on a ratio apply only to B.
    broken = violations(settings.conditions, sides[1], comparisons)
    return Findings(
        (tuple(sides[0]), tuple(sides[1])), comparisons=comparisons, violations=tuple(broken)
    )


def _ask_max_rate(settings: QuestionSettings, measure: Measure) -> Findings:
    slo = settings.objective
    assert slo is not None, "settings.errors() says so"
    max_rate = resolve(find_max_rate(slo, settings.search_rules), measure)
    at_rate = [
        measurement
        for measurement in max_rate.measurements
        if measurement.level.value == max_rate.rate
    ]
    failed = violations(settings.conditions, at_rate)
    if settings.conditions and not at_rate:
        failed = [
            f"{condition.text}: no rate keeps {slo.text}" for condition in settings.conditions
        ]
    return Findings((max_rate.measurements,), max_rate=max_rate, violations=tuple(failed))
