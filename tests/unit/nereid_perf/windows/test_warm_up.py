"""How long the warm-up is."""

import random

import pytest

from nereid_perf.windows.warm_up import warm_up_length


def test_a_steady_series_has_no_warm_up_to_speak_of() -> None:
    chance = random.Random(1)
    lengths = [
        warm_up_length([10 + chance.gauss(0, 1) for _ in range(200)]) or 0 for _ in range(50)
    ]
    assert sum(lengths) / len(lengths) < 50


@pytest.mark.parametrize("cut", [10, 30, 50])
def test_a_slow_beginning_is_cut_off(cut: int) -> None:
    chance = random.Random(2)
    values = [100 + chance.gauss(0, 1)] * cut + [10 + chance.gauss(0, 1) for _ in range(200 - cut)]
    assert warm_up_length(values) in range(cut, cut + 11)


def test_a_series_that_still_falls_is_not_warm() -> None:
    assert warm_up_length([1000 - 5 * number for number in range(100)]) is None


@pytest.mark.parametrize("number", [0, 4, 19])
def test_a_short_series_says_nothing(number: int) -> None:
    assert warm_up_length([1.0] * number) is None


def test_all_equal_is_warm_from_the_beginning() -> None:
    assert warm_up_length([3.0] * 40) == 0
