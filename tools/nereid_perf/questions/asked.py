"""Asks what the settings say, with a callable that measures, and gathers what was found."""

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
    """sides: what was measured of each server, in its order: of one, or of A and B."""

    sides: tuple[tuple[Measurement, ...], ...]
    max_rate: MaxRate | None = None
    comparisons: tuple[Comparison, ...] = ()
    violations: tuple[str, ...] = ()


def ask(settings: QuestionSettings, measure: Measure, levels: LevelRange | None = None) -> Findings:
    """Of one server. levels: instead of the settings' ranges, such as those of a trace."""
    if settings.find_max_rate:
        return _ask_max_rate(settings, measure)
    levels, threshold = levels or settings.levels, settings.threshold
    if settings.binary_search:
        assert threshold is not None, "settings.errors() says so"
        found = resolve(binary_search(levels, threshold), measure)
    elif settings.rounds > 1:
        found = resolve(repeat(levels, settings.rounds), measure)
    else:
        found = resolve(sweep(levels, threshold), measure)
    return Findings((tuple(found),), violations=tuple(violations(settings.conditions, found)))


def ask_comparison(
    settings: QuestionSettings,
    measure: Callable[[Turn], Measurement],
    levels: LevelRange | None = None,
) -> Findings:
    """Of two servers, A and B: turn.side says whose turn it is. levels: as for ask()."""
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
    """Of two results that were measured before. Raises ValueError: no level in common."""
    return _compared(settings, (a, b), compare_results(a, b, settings.confidence))


def _compared(
    settings: QuestionSettings,
    sides: tuple[Sequence[Measurement], Sequence[Measurement]],
    comparisons: tuple[Comparison, ...],
) -> Findings:
    # Plain conditions are about B: A is what it is compared with.
    found = violations(settings.conditions, sides[1], comparisons)
    return Findings(
        (tuple(sides[0]), tuple(sides[1])), comparisons=comparisons, violations=tuple(found)
    )


def _ask_max_rate(settings: QuestionSettings, measure: Measure) -> Findings:
    slo = settings.objective
    assert slo is not None, "settings.errors() says so"
    found = resolve(find_max_rate(slo, settings.search_rules), measure)
    at_rate = [each for each in found.measurements if each.level.value == found.rate]
    failed = violations(settings.conditions, at_rate)
    if settings.conditions and not at_rate:
        failed = [f"{each.text}: no rate keeps {slo.text}" for each in settings.conditions]
    return Findings((found.measurements,), max_rate=found, violations=tuple(failed))
