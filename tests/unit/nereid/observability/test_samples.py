"""The page of metrics, read."""

from __future__ import annotations

from nereid.observability.samples import Samples

_PAGE = r"""
# HELP c_total Requests
# TYPE c_total counter
c_total{model="a",version="1",reason="full"} 3
c_total{model="a",version="2",reason="full"} 4
c_total{model="a",version="1",reason="shape"} 5 1700000000
c_total{model="quoted \"}\\ \n",version="1",reason="full"} 1
plain 2.5
infinite +Inf
broken{ 1
word one
"""


def test_sums_by_labels() -> None:
    page = Samples(_PAGE.encode())
    assert page.total("c_total") == 13
    assert page.total("c_total", model="a", version="1") == 8
    assert page.total("plain") == 2.5
    assert page.total("infinite") == float("inf")
    assert page.total("c_total", model="b") is None
    assert page.total("broken") is None
    assert page.total("word") is None
    assert page.by_label("c_total", "reason", model="a") == {"full": 7, "shape": 5}
    assert page.by_label("plain", "reason") == {}


def test_escaped_labels() -> None:
    page = Samples(_PAGE.encode())
    assert page.total("c_total", model='quoted "}\\ \n') == 1
