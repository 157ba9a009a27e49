import numpy as np
import pytest

from nereid_analyze.estimate.rates import fit_correction


def _grid() -> np.ndarray:
    return np.stack(np.meshgrid(np.linspace(0, 1, 5), np.linspace(0, 1, 5)), -1).reshape(-1, 2)


def _miss(places: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * np.sin(3 * places[:, 0]))


def test_it_is_sure_near_what_was_measured_and_not_far_from_it() -> None:
    places = _grid()[:10]
    correction = fit_correction(places, _miss(places), np.full(10, 0.02))
    near = correction.rates(places, np.zeros(10))
    far = correction.rates(np.array([[5.0, 5.0]]), np.zeros(1))
    assert near.deviation.max() < 0.05
    assert far.deviation[0] > 2 * near.deviation.max()
    assert near.mean == pytest.approx(_miss(places), abs=0.05)


def test_a_setting_without_effect_is_seen_to_have_none() -> None:
    places = _grid()
    correction = fit_correction(places, _miss(places), np.full(len(places), 0.02))
    assert correction.lengths[1] > correction.lengths[0]


def test_its_intervals_hold_what_they_claim() -> None:
    random = np.random.default_rng(3)
    held = []
    for _ in range(40):
        slopes = random.normal(0, 0.4, 2)
        measured = random.random((8, 2))
        correction = fit_correction(
            measured, measured @ slopes + random.normal(0, 0.02, 8), np.full(8, 0.02)
        )
        others = random.random((10, 2))
        rates = correction.rates(others, np.zeros(10))
        held += list(np.abs(others @ slopes - rates.mean) <= 2 * rates.deviation)
    assert np.mean(held) > 0.85


def test_gains_are_expected_where_rates_may_be_higher() -> None:
    places = np.array([[0.0], [1.0]])
    correction = fit_correction(places, np.array([0.0, 1.0]), np.full(2, 0.02))
    gains = correction.rates(np.array([[0.0], [0.5], [1.0]]), np.zeros(3)).expected_gains(1.0)
    assert gains[0] < 1e-3
    assert gains[2] < 0.05
    assert (gains >= 0).all()


def test_draws_scatter_as_the_deviations_say() -> None:
    places = _grid()[:6]
    correction = fit_correction(places, _miss(places), np.full(6, 0.02))
    others = _grid()[6:]
    logs = np.zeros(len(others))
    draws = correction.draws(others, logs, 4000, np.random.default_rng(1))
    rates = correction.rates(others, logs)
    assert draws.std(axis=0) == pytest.approx(rates.deviation, rel=0.1, abs=0.005)
    assert draws.mean(axis=0) == pytest.approx(rates.mean, abs=0.05)
