import numpy as np
import pytest

from nereid_analyze.estimate.batch_times import fit_batch_times


def test_a_line_is_found_through_noise() -> None:
    random = np.random.default_rng(1)
    points = [
        (float(size), (300 + 25 * size) * float(np.exp(random.normal(0, 0.03))))
        for size in (1, 4, 16, 64)
        for _ in range(3)
    ]
    found = fit_batch_times(points)
    assert found is not None
    assert found.fixed_us == pytest.approx(300, rel=0.1)
    assert found.row_us == pytest.approx(25, rel=0.1)
    assert found.error == pytest.approx(0.03, abs=0.02)


def test_nothing_is_below_zero() -> None:
    # Of times that fall with the size, as those of a cold start do.
    found = fit_batch_times([(1, 500), (2, 300), (4, 200)])
    assert found is not None
    assert found.row_us == 0
    assert found.fixed_us > 0


def test_one_size_says_little() -> None:
    found = fit_batch_times([(4, 100)])
    assert found is not None
    assert found.of(4) == pytest.approx(100)
    assert found.error == 0.5


def test_without_a_point_there_is_no_line() -> None:
    assert fit_batch_times([(1, 0.0)]) is None
