import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from nereid_perf.distribution import (
    count_within,
    deviation_us,
    max_us,
    mean_us,
    percentile_us,
    percentiles_us,
    recorded_us,
)
from tests.support.measurements import histogram

_VALUES = st.lists(st.floats(0.001, 1e8), max_size=20)


@pytest.mark.parametrize(
    ("values", "percentile"),
    [([], 50), ([0.001], 99), ([1, 1, 2, 3, 500], 50), ([1.7 * n for n in range(99)], 99.9)],
)
def test_figures_are_the_library_s(values: list[float], percentile: float) -> None:
    found = histogram(values)
    assert percentile_us(found, percentile) * 1000 == pytest.approx(
        found.get_value_at_percentile(percentile)
    )
    assert mean_us(found) * 1000 == pytest.approx(found.get_mean_value())
    assert deviation_us(found) * 1000 == pytest.approx(found.get_stddev())
    assert max_us(found) * 1000 == found.get_max_value()


@given(_VALUES)
def test_figures_survive_encoding(values: list[float]) -> None:
    found = histogram(values)
    decoded = HdrHistogram.decode(found.encode())
    ranks = [50, 99, 100]
    assert percentiles_us(decoded, ranks) == percentiles_us(found, ranks)
    assert count_within(decoded, 1e9) == len(values)
    assert max_us(decoded) == max_us(found)


def test_values_within_a_limit_are_counted() -> None:
    found = histogram([10.0 * n for n in range(1, 101)])
    limits = (9, 10, 505, 1000, 5000, 1e12)
    assert [count_within(found, limit) for limit in limits] == [0, 1, 50, 100, 100, 100]


def test_recorded_values() -> None:
    values, counts = recorded_us(histogram([1, 1, 2]))
    assert values.tolist() == [1, 2]
    assert counts.tolist() == [2, 1]
    assert np.array_equal(recorded_us(histogram())[1], [])
