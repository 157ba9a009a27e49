"""The page of metrics, read."""

from __future__ import annotations

from nereid.observability.samples import Samples, Series

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


def test_apart_by_labels_and_together_again() -> None:
    page = Samples(_PAGE.encode())
    parts = page.split("model", "version")
    assert parts["a", "1"].total("c_total") == 8
    assert parts["a", "2"].total("c_total") == 4
    assert parts[()].total("plain") == 2.5
    assert parts[()].total("c_total") is None
    both = Samples.joined(parts["a", "1"], parts["a", "2"], parts[()])
    assert (both.total("c_total"), both.total("plain")) == (12, 2.5)
    # The parts are as they were.
    assert parts["a", "1"].total("c_total") == 8
    assert parts["a", "1"].same_as(Samples(_PAGE.encode()).split("model", "version")["a", "1"])
    assert not parts["a", "1"].same_as(parts["a", "2"])
    both.extend(Samples(b"plain 2"))
    assert both.total("plain") == 4.5


def test_what_is_remembered_of_a_page_reads_the_next_one_alike() -> None:
    known: dict[bytes, Series] = {}
    assert Samples(_PAGE.encode(), known=known).same_as(Samples(_PAGE.encode()))
    assert b'c_total{model="a",version="2",reason="full"}' in known
    # Not what has a time behind its value.
    assert not any(b"shape" in series for series in known)
    later = _PAGE.replace("plain 2.5", "plain 7").encode()
    assert Samples(later, known=known).same_as(Samples(later))
    broken = Samples(_PAGE.replace("plain 2.5", "plain none").encode(), known=known)
    assert broken.total("plain") is None
