"""Among others: that what a comparison says is right as often as it claims, in simulated rounds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from nereid_perf.measurement import ClientCost, Latencies, LoadLevel, Measurement
from nereid_perf.questions.comparison import (
    Comparison,
    Ratio,
    Turn,
    compare,
    compare_results,
)
from nereid_perf.questions.question import resolve
from tests.support.measurements import concurrency, histogram, measured, rate

_LEVEL = concurrency(4)
_SKELETON = measured(_LEVEL)


def _ratio(comparison: Comparison, metric: str) -> Ratio:
    return next(each for each in comparison.ratios if each.metric == metric)


@dataclass
class Machine:
    """A machine on which A and B take turns: 4 in flight, B's service time is `ratio` of A's.

    Scatters by 1 % from one measurement to the next, drifts by 10 % over the whole comparison and
    wanders, for both alike; one measurement in twenty is disturbed by something else.
    """

    rng: np.random.Generator
    ratio: float
    is_disturbed: bool = True
    requests: int = 500

    def __post_init__(self) -> None:
        self.drift = 0.0
        self.slope = self.rng.choice([-1, 1]) * 0.1 / 40

    def measure(self, turn: Turn) -> Measurement:
        self.drift += self.slope + self.rng.normal(0, 0.005)
        shift = self.drift + self.rng.normal(0, 0.01)
        if self.is_disturbed and self.rng.random() < 0.05:
            shift += self.rng.exponential(0.2)
        service = 2000 * np.exp(shift) * (self.ratio if turn.side else 1)
        latencies = service * (0.9 + self.rng.exponential(0.1, self.requests))
        return replace(
            _SKELETON,
            level=turn.level,
            requests=self.requests,
            duration_s=float(latencies.sum()) / 4e6,
            latencies=_latencies(latencies),
            client=ClientCost(20 * float(np.exp(self.rng.normal(0, 0.02))), 0.3, 0, False),
        )


def _latencies(latencies_us: NDArray[np.float64]) -> Latencies:
    found = histogram()
    # Rounded to what the histogram tells apart: fewer values to record.
    for us, count in zip(*np.unique(np.round(latencies_us, -1), return_counts=True), strict=True):
        found.record_value(int(us) * 1000, int(count))
    return Latencies(found, found, found, found)


@pytest.mark.slow
def test_three_per_cent_are_found_with_an_interval_that_holds_them() -> None:
    right = 0
    runs = 100
    for seed in range(runs):
        machine = Machine(np.random.default_rng(seed), 1.03, is_disturbed=False)
        (found,) = resolve(compare([_LEVEL]), machine.measure)
        p50 = _ratio(found, "p50")
        assert p50.low is not None
        assert p50.high is not None
        right += p50.is_different and p50.low <= 1.03 <= p50.high
    assert right / runs >= 0.97


@pytest.mark.slow
def test_between_equals_no_difference_is_found() -> None:
    right = 0
    runs = 100
    for seed in range(runs):
        (found,) = resolve(compare([_LEVEL]), Machine(np.random.default_rng(seed), 1).measure)
        assert [each.metric for each in found.ratios] == ["rate", "p50", "p99", "cpu"]
        right += not any(each.is_different for each in found.ratios)
    assert right / runs >= 0.95


@pytest.mark.slow
def test_on_a_disturbed_machine_the_interval_holds_the_ratio_and_mostly_finds_it() -> None:
    held = different = 0
    runs = 100
    for seed in range(runs):
        machine = Machine(np.random.default_rng(seed), 1.03)
        (found,) = resolve(compare([_LEVEL]), machine.measure)
        p50 = _ratio(found, "p50")
        assert p50.low is not None
        assert p50.high is not None
        held += p50.low <= 1.03 <= p50.high
        different += p50.is_different
    assert held / runs >= 0.97
    assert different / runs >= 0.8


def test_the_sides_take_turns_in_being_first() -> None:
    turns: list[Turn] = []

    def measure(turn: Turn) -> Measurement:
        turns.append(turn)
        return measured(turn.level)

    found = resolve(compare([concurrency(1), concurrency(2)], rounds=2), measure)
    assert [(each.side, each.level.value) for each in turns] == [
        (0, 1),
        (1, 1),
        (1, 1),
        (0, 1),
        (0, 2),
        (1, 2),
        (1, 2),
        (0, 2),
    ]
    assert [each.level.value for each in found] == [1, 2]
    assert {each.rounds for each in found} == {2}


def test_the_client_s_own_cost_is_not_judged() -> None:
    def measure(turn: Turn) -> Measurement:
        return measured(turn.level, client=ClientCost(20.0 + turn.side, 0.3, 0, False))

    (found,) = resolve(compare([_LEVEL], rounds=9), measure)
    cost = _ratio(found, "cpu")
    assert cost.low == pytest.approx(1.05)
    assert not cost.is_different
    assert cost.outcome == "the client's, not judged"


def test_two_rounds_allow_no_interval_and_say_so() -> None:
    (found,) = resolve(
        compare([_LEVEL], rounds=2), lambda turn: measured(turn.level, [1000.0 + turn.side])
    )
    p50 = _ratio(found, "p50")
    assert p50.ratio == pytest.approx(1.001, rel=1e-3)
    assert not p50.is_different
    assert (p50.outcome, p50.interval_text) == ("not shown to differ", "no interval")
    assert found.note == "2 rounds allow no interval: measure with --rounds 20"


def test_a_client_that_was_the_bottleneck_is_noted() -> None:
    busy = ClientCost(20, 1, 0, True)
    (found,) = resolve(compare([_LEVEL], rounds=1), lambda turn: measured(turn.level, client=busy))
    assert found.note.endswith("; the client was the bottleneck in at least one round")
    (found,) = resolve(compare([_LEVEL], rounds=8), lambda turn: measured(turn.level, client=busy))
    assert found.note == "the client was the bottleneck in at least one round"


def test_the_server_s_load_is_compared_where_both_say_it() -> None:
    def measure(turn: Turn) -> Measurement:
        gauges = {"nv_cpu_utilization": (0.5 + turn.side / 4, 1.0), "other": (1.0, 1.0)}
        return measured(turn.level, gauges=gauges)

    (found,) = resolve(compare([_LEVEL], rounds=8), measure)
    load = _ratio(found, "nv_cpu_utilization")
    assert load.ratio == pytest.approx(1.5)
    assert load.is_different
    assert (load.outcome, load.interval_text) == ("different", "1.500 to 1.500")
    assert load.value_text(load.a) == "50 %"
    assert _ratio(found, "p50").value_text(1000) == "1 ms"


def test_what_has_no_figure_is_not_compared() -> None:
    (found,) = resolve(compare([_LEVEL], rounds=8), lambda turn: measured(turn.level, []))
    assert [each.metric for each in found.ratios] == ["cpu"]
    assert found.note == "; ".join(
        f"{name} without 16 measurements that have none" for name in ("rate", "p50", "p99")
    )


def test_pairs_of_which_one_has_no_figure_are_left_out() -> None:
    turns: list[Turn] = []

    def measure(turn: Turn) -> Measurement:
        turns.append(turn)
        return measured(turn.level, [] if len(turns) == 3 else [1000.0 * (1 + turn.side)])

    (found,) = resolve(compare([_LEVEL], rounds=9), measure)
    assert _ratio(found, "p50").ratio == pytest.approx(2, rel=1e-3)
    assert _ratio(found, "p50").is_different
    assert "p50 without 2 measurements that have none" in found.note
    one_sided = [measured(_LEVEL, []), *[measured(_LEVEL)] * 3]
    (found,) = compare_results(one_sided, [measured(_LEVEL)] * 2, 0.5)
    assert "p50 without 1 measurements that have none" in found.note


def _rounds(level: LoadLevel, us: float) -> list[Measurement]:
    return [measured(level, [us + n] * 10, duration_s=us / 1e5) for n in range(12)]


def test_two_results_by_the_levels_that_both_have() -> None:
    found = compare_results(
        [*_rounds(rate(1), 1000), *_rounds(rate(2), 1000)],
        [*_rounds(rate(2), 1100), *_rounds(rate(3), 1000)],
    )
    assert [each.level for each in found] == [rate(2)]
    p50 = _ratio(found[0], "p50")
    assert p50.is_different
    assert p50.ratio == pytest.approx(1.1, rel=0.01)
    assert not found[0].is_paired


def test_results_without_a_level_in_common() -> None:
    with pytest.raises(ValueError, match="no level of load in common"):
        compare_results([measured(rate(1))], [measured(rate(2))])
