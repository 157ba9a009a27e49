"""The loads to rehearse with."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.autoscaling import load


def test_requests_come_at_the_rate_of_the_load() -> None:
    times = list(load.arrivals(load.bursty, 2400, random.Random(1)))
    assert times == sorted(times)
    assert times[-1] < 2400
    burst = [each for each in times if 300 <= each < 480]
    assert len(burst) == pytest.approx(1800, rel=0.1)
    assert len([each for each in times if 500 <= each < 1100]) == pytest.approx(1200, rel=0.1)


def test_silence_passes() -> None:
    times = list(load.arrivals(load.sparse, 2400, random.Random(1)))
    assert min(times) >= 600
    # The rate of a second is that of its beginning.
    assert max(times) < 1202


def test_a_days_peak_is_in_its_middle() -> None:
    rates = [load.diurnal(hour * load.DAY_S / 24) for hour in range(25)]
    assert max(rates) == rates[12] == 12
    assert min(rates) == rates[0] == 0.5


def test_a_recorded_load(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("1700000000,2\n1700000060,7.5\n1700000120,0\n")
    rate, until_s = load.recorded(path)
    assert until_s == 120
    assert [rate(each) for each in (0, 59, 60, 119, 500)] == [2, 2, 7.5, 7.5, 0]


@pytest.mark.parametrize("text", ["", "1,2\n", "2,1\n1,1\n", "1,2\nx,3\n", "1,2,3\n2,3\n"])
def test_what_is_no_load_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "load.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"two rows|float|unpack"):
        load.recorded(path)
