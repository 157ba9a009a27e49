"""Intervals of ratios, and the outcome that the table of shadows shows."""

from __future__ import annotations

import pytest

from benchmarks.shadows import Figures, interval, report


def test_an_interval_holds_the_mean_of_ratios() -> None:
    assert interval([2.0, 2.0]) == pytest.approx((2, 2, 2))
    middle, low, high = interval([0.5, 1.0, 2.0, 1.0])
    assert middle == pytest.approx(1)
    assert 0.5 <= low < 1 < high <= 2


def test_only_a_shadow_beyond_the_noise_is_said_to_be() -> None:
    def rounds(*p99_us: float) -> list[Figures]:
        return [Figures(100, each, 50, 0, 10) for each in p99_us]

    lines = report(
        {
            "none": rounds(200, 210, 190),
            "none again": rounds(190, 215, 200),
            "equal": rounds(205, 200, 195),
            "hang": rounds(400, 420, 380),
        }
    )
    outcomes = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[-1] for line in lines}
    assert outcomes["equal"] == "yes |"
    assert outcomes["hang"] == "no |"
