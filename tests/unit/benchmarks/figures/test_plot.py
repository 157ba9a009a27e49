"""Plots are the same bytes each time, whatever matplotlib's settings are, and valid SVG."""

from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest

from benchmarks.figures.plot import Axis, Panel, draw

PANELS = [
    Panel(
        "rates",
        Axis("p99, ms", logarithmic=True),
        Axis("per second", logarithmic=logarithmic, lowest=None if logarithmic else 0),
        {"one": [(0.5, 39345.0), (20.0, 29509.0)], "another": [(1.0, 300.0)]},
        {"one": ["1", "64"], "another": ["1"]},
    )
    for logarithmic in (True, False)
]


@pytest.mark.slow
def test_the_same_panels_make_the_same_bytes() -> None:
    first = draw(PANELS, columns=2, label_title="in flight")
    with mpl.rc_context({"font.size": 20, "svg.hashsalt": None}):
        assert draw(PANELS, columns=2, label_title="in flight") == first
    assert draw(PANELS, columns=1, label_title="in flight") != first
    ET.fromstring(first)


def test_panels_that_do_not_fill_their_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        draw(PANELS, columns=3)
