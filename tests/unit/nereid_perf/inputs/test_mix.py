"""Proportions of models."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.mix import Deck


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 3))
def test_each_round_has_the_models_in_proportion(weights: list[int], seed: int) -> None:
    deck = Deck([Fraction(each, 4) for each in weights], Random(seed))
    for _ in range(3):
        found = Counter(deck.deal() for _ in range(deck.round_length))
        shares = [Fraction(found[index], deck.round_length) for index in range(len(weights))]
        assert shares == [Fraction(each, sum(weights)) for each in weights]


def test_order_is_the_seeds_and_differs_between_rounds() -> None:
    weights = [Fraction(7), Fraction("3.5")]
    one, same, other = (Deck(weights, Random(seed)) for seed in (1, 1, 2))
    assert one.round_length == 3
    first = [one.deal() for _ in range(60)]
    assert first == [same.deal() for _ in range(60)]
    assert first != [other.deal() for _ in range(60)]
    assert len({tuple(first[at : at + 3]) for at in range(0, 60, 3)}) == 3


def test_proportions_that_are_too_fine() -> None:
    with pytest.raises(InputError, match="at most 10000 in lowest terms, found 10001"):
        Deck([Fraction(1), Fraction(10_000)], Random(0))
