"""Histograms of many values at once."""

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from nereid_perf.windows.histograms import MAX_NS, histogram_of


def test_it_is_what_recording_each_value_makes() -> None:
    chance = np.random.default_rng(5)
    values = np.exp(chance.uniform(0, np.log(MAX_NS), 5000)).astype(np.int64)
    values = np.concatenate((values, [1, 2047, 2048, 2049, 4095, 4096, MAX_NS]))
    recorded = HdrHistogram(1, MAX_NS, 3)
    for value in values.tolist():
        assert recorded.record_value(value)
    histogram = histogram_of(values)
    assert list(histogram.counts) == list(recorded.counts)
    assert histogram.total_count == recorded.total_count
    assert histogram.get_min_value() == recorded.get_min_value()
    assert histogram.get_max_value() == recorded.get_max_value()
    for percentile in (0, 50, 99, 99.9, 100):
        ours = histogram.get_value_at_percentile(percentile)
        assert ours == recorded.get_value_at_percentile(percentile)


def test_histograms_can_be_added() -> None:
    total = histogram_of(np.array([1000, 2000]))
    total.add(histogram_of(np.array([3000])))
    assert total.get_total_count() == 3
    assert total.get_value_at_percentile(100) == pytest.approx(3000, rel=1e-3)


def test_values_beyond_the_ends_count_as_the_ends() -> None:
    histogram = histogram_of(np.array([-5, 0, 2 * MAX_NS]))
    assert histogram.total_count == 3
    assert histogram.get_min_value() <= 1
    assert histogram.get_max_value() >= MAX_NS


def test_of_nothing_it_is_empty() -> None:
    assert histogram_of(np.array([], dtype=np.int64)).total_count == 0
