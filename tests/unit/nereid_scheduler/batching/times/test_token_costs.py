"""The fixed cost of an execution, from batches of different numbers of tokens."""

import random

import pytest

from nereid_scheduler.batching.times.token_costs import TokenCosts

US = 1000


def costs_of(fixed_us: float, token_us: float, *, stalls: float = 0, batches: int = 500) -> float:
    source, costs = random.Random(1), TokenCosts()
    for _ in range(batches):
        tokens = source.randint(8, 2048)
        taken_us = (fixed_us + token_us * tokens) * source.uniform(0.95, 1.05)
        if source.random() < stalls:
            taken_us *= 20
        costs.record(tokens, taken_us * US)
    return costs.fixed_tokens


@pytest.mark.parametrize("stalls", [0, 0.03])
@pytest.mark.parametrize("fixed_us", [500, 1500, 50_000])
def test_the_fixed_cost_is_found_in_spite_of_noise(fixed_us: float, stalls: float) -> None:
    assert costs_of(fixed_us, 100, stalls=stalls) == pytest.approx(fixed_us / 100, rel=0.4)


def test_tokens_that_cost_nothing_make_all_padding_worth_it() -> None:
    costs = TokenCosts()
    for tokens in range(8, 200):
        costs.record(tokens, 4000 * US)
    assert costs.fixed_tokens > 1e5


def test_costs_that_only_grow_have_no_fixed_part() -> None:
    costs = TokenCosts()
    for tokens in range(8, 200):
        costs.record(tokens, tokens * tokens * US)
    assert costs.fixed_tokens == 0


def test_it_is_assumed_until_batches_differ() -> None:
    costs = TokenCosts()
    for _ in range(100):
        costs.record(64, 5000 * US)
    assert costs.fixed_tokens == 16
    assert costs_of(50_000, 100, batches=15) == 16
