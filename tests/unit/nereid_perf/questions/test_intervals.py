import math
from itertools import permutations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from nereid_perf.questions.intervals import fewest_pairs, paired_ratio, unpaired_ratio


def test_equal_sides() -> None:
    found = paired_ratio([3.0] * 10, [3.0] * 10, 0.95)
    assert (found.estimate, found.low, found.high) == (1, 1, 1)


def test_a_constant_ratio_is_found_exactly() -> None:
    a = [1.0, 5.0, 2.0, 9.0, 3.0, 4.0, 8.0, 7.0]
    for found in (paired_ratio(a, [each * 1.5 for each in a], 0.95),):
        assert found.estimate == pytest.approx(1.5)
        assert found.low == pytest.approx(1.5)
        assert found.high == pytest.approx(1.5)


def test_one_wild_round_does_not_move_the_estimate_far() -> None:
    a = [1.0] * 20
    b = [1.03] * 19 + [50.0]
    found = paired_ratio(a, b, 0.99)
    assert found.estimate == pytest.approx(1.03)
    assert found.low == pytest.approx(1.03)


def test_too_few_rounds_allow_no_interval() -> None:
    fewest = fewest_pairs(0.99)
    assert fewest == 8
    values = np.linspace(1, 2, fewest).tolist()
    assert paired_ratio(values, values[::-1], 0.99).low is not None
    short = paired_ratio(values[1:], values[1:], 0.99)
    assert (short.estimate, short.low, short.high) == (1, None, None)
    assert unpaired_ratio([1.0], [2.0], 0.95).low is None
    assert unpaired_ratio([1.0], [2.0], 0.95).estimate == pytest.approx(2)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_pairs_hold_as_much_as_all_signs_say(confidence: float) -> None:
    """Of all signs that equal sides could have given, at most 1 - confidence exclude 1."""
    sizes = np.array([0.11, 0.23, 0.31, 0.47, 0.59, 0.61, 0.83])
    excluded = 0
    for signs in product((-1, 1), repeat=len(sizes)):
        found = paired_ratio([1.0] * 7, np.exp(sizes * signs).tolist(), confidence)
        assert found.low is not None
        assert found.high is not None
        excluded += not found.low <= 1 <= found.high
    # As much as is possible with so few, and no more.
    share = excluded / 2**7
    assert 1 - confidence - 2 * 3 / 2**7 <= share <= 1 - confidence


def test_two_sets_hold_as_much_as_all_orders_say() -> None:
    values = [0.1, 0.25, 0.4, 0.57, 0.71, 0.86, 1.03, 1.31]
    orders = {(tuple(sorted(p[:4])), tuple(sorted(p[4:]))) for p in permutations(values)}
    excluded = 0
    for a, b in orders:
        found = unpaired_ratio([math.exp(x) for x in a], [math.exp(x) for x in b], 0.9)
        assert found.low is not None
        assert found.high is not None
        excluded += not found.low <= 1 <= found.high
    assert 0.05 <= excluded / len(orders) <= 0.1


def test_sides_of_two_sets_may_differ_in_number() -> None:
    rng = np.random.default_rng(1)
    found = unpaired_ratio(
        rng.lognormal(0, 0.01, 9).tolist(), rng.lognormal(0.1, 0.01, 14).tolist(), 0.99
    )
    assert found.low is not None
    assert found.high is not None
    assert found.low <= math.exp(0.1) <= found.high
    assert found.low > 1.05


def _percentile_bootstrap(
    logs: NDArray[np.float64], rng: np.random.Generator
) -> tuple[float, float]:
    means = rng.choice(logs, (1000, len(logs))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def test_ranks_hold_what_they_claim_where_a_bootstrap_does_not() -> None:
    """Ten pairs of rounds that scatter by 1 %, B takes 3 % longer: 95 % are claimed."""
    rng = np.random.default_rng(7)
    runs, truth = 400, math.log(1.03)
    ranks = bootstrap = 0
    for _ in range(runs):
        a, b = rng.normal(0, 0.01, (2, 10))
        b = b + truth
        found = paired_ratio(np.exp(a).tolist(), np.exp(b).tolist(), 0.95)
        assert found.low is not None
        assert found.high is not None
        ranks += found.low <= 1.03 <= found.high
        low, high = _percentile_bootstrap(b - a, rng)
        bootstrap += low <= truth <= high
    assert ranks / runs >= 0.94
    assert bootstrap / runs <= 0.92
