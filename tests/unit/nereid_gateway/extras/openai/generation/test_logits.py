"""Sampling by logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nereid_gateway.extras.openai.generation.logits import Sampler
from nereid_gateway.extras.openai.generation.sampling import Sampling

LOGITS = np.array([0.0, 3.0, 1.0, 2.0, -1.0], np.float32)


def sampled(
    count: int = 300, generated: tuple[int, ...] = (), index: int = 0, **options: Any
) -> list[int]:
    bias = options.pop("bias", None)
    sampler = Sampler(Sampling({"seed": 1, **options}, bias=bias), index)
    return [sampler.sample(LOGITS.copy(), (3,), generated).token for _ in range(count)]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"temperature": 0.0}, {1}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.01}, {1}),
        ({"top_p": 0.8}, {1, 3}),
        ({"min_p": 0.2}, {1, 3}),
        ({"bias": {4: 100.0, 99: 1.0}}, {4}),
        ({"temperature": 0.0, "bias": {1: -100.0}}, {3}),
        ({"temperature": 0.0, "generated": (1, 1), "frequency_penalty": 1.0}, {3}),
        ({"temperature": 0.0, "generated": (1,), "presence_penalty": 1.5}, {3}),
        ({"temperature": 0.0, "generated": (1,), "repetition_penalty": 5.0}, {2}),
        ({"temperature": 2.0}, {0, 1, 2, 3, 4}),
    ],
)
def test_parameters_limit_the_tokens(options: dict[str, Any], tokens: set[int]) -> None:
    assert set(sampled(**options)) == tokens


def test_no_token_ends_a_text_before_its_least_length() -> None:
    sampler = Sampler(Sampling({"temperature": 0.0, "min_tokens": 2}), 0, eos_ids={1, 99})
    tokens = [sampler.sample(LOGITS.copy(), (), (0,) * count).token for count in range(4)]
    assert tokens == [3, 3, 1, 1]


def test_shares_are_those_of_the_logits() -> None:
    tokens = sampled(4000, temperature=1.0)
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    shares = np.bincount(tokens, minlength=5) / 4000
    assert np.abs(shares - expected).max() < 0.03


def test_a_seed_repeats_a_text_but_not_that_of_another_choice() -> None:
    assert sampled() == sampled()
    assert sampled() != sampled(index=1)
    assert sampled(seed=-5) == sampled(seed=-5)


def test_logprobs_of_the_token_and_of_the_likeliest() -> None:
    sampler = Sampler(Sampling({"temperature": 0.0}, logprobs=2), 0)
    got = sampler.sample(LOGITS.copy(), (), ())
    expected = LOGITS - np.log(np.exp(LOGITS).sum())
    assert got.logprob is not None
    assert np.isclose(got.logprob, expected[1])
    assert [token for token, _ in got.top] == [1, 3]
    assert np.allclose([logprob for _, logprob in got.top], expected[[1, 3]])
