"""Counts of requests that decay with the requests themselves."""

import math

import pytest

from nereid_scheduler.control.residency.policies.popularity import Popularity


def test_a_count_halves_with_every_half_life_of_requests() -> None:
    of = Popularity(half_life=4)
    # Two models in memory: a half-life is eight requests.
    of.update({"m": 1, "n": 0})
    first = of.count("m")
    assert 0.9 < first < 1
    of.update({"m": 1, "n": 8})
    assert of.count("m") == pytest.approx(first / 2)
    of.update({"m": 1, "n": 16})
    assert of.count("m") == pytest.approx(first / 4)
    assert of.count("unknown") == 0


def test_without_requests_nothing_decays() -> None:
    of = Popularity(4)
    of.update({})
    of.update({"m": 3})
    before = of.count("m")
    of.update({"m": 3})
    of.update({})
    assert of.count("m") == before > 0


def test_how_often_it_is_updated_hardly_matters() -> None:
    often, once = Popularity(4), Popularity(4)
    for number in range(1, 101):
        often.update({"m": number, "n": 2 * number})
    once.update({"m": 100, "n": 200})
    for name in ("m", "n"):
        assert once.count(name) == pytest.approx(often.count(name), rel=0.01)


def test_any_number_of_requests_is_worth_no_more_than_a_steady_load() -> None:
    of = Popularity(4)
    of.update({"m": 10**9, "n": 10**9})
    # What 8 requests in a half-life add up to, half of them for each.
    assert of.count("m") == of.count("n") == pytest.approx(4 / math.log(2))
    of.update({"m": 10**9, "n": 10**9 + 1})
    assert of.count("n") > of.count("m")


def test_a_model_keeps_its_count_while_it_is_not_in_memory() -> None:
    of = Popularity(4)
    of.update({"m": 5, "n": 1})
    before = of.count("m")
    of.update({"n": 2})
    assert 0.8 * before < of.count("m") < before
    # Its statistics begin at zero with each load.
    before = of.count("m")
    of.update({"m": 5, "n": 2})
    assert of.count("m") > before + 2


def test_statistics_that_begin_anew_in_memory_count_from_zero() -> None:
    of = Popularity(1000)
    of.update({"m": 50})
    before = of.count("m")
    of.update({"m": 2})
    assert of.count("m") == pytest.approx(before + 2, abs=0.1)


def test_what_counts_for_nothing_any_more_is_forgotten() -> None:
    of = Popularity(4)
    for number in range(10_000):
        of.update({"hot": number, f"m{number}": 1})
        assert len(of) <= 20 * 4 * 2
    assert of.count("m0") == 0 < of.count("m9990")


def test_with_a_half_life_of_zero_all_models_are_equal() -> None:
    of = Popularity(0)
    of.update({"m": 5, "n": 1})
    assert of.count("m") == of.count("n") == len(of) == 0
