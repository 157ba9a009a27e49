"""Markers in texts that arrive in parts: found however the text is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nereid_gateway.extras.openai.generation.markers import MarkerSearch

MARKERS = ("ab", "abcab", "ca", "x")


@given(st.text("abcxy", max_size=30), st.lists(st.integers(0, 30), max_size=8))
def test_a_cut_changes_nothing(text: str, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    search = MarkerSearch(MARKERS)
    got = ""
    for begin, end in pairwise(borders):
        found = search.feed(text[begin:end])
        got += found.text
        if found.marker:
            # No marker ends before it.
            assert not any(marker in got for marker in MARKERS)
            assert text.startswith(got + found.marker)
            return
    assert got + search.flush() == text
    assert not any(marker in text for marker in MARKERS)


def test_only_the_beginning_of_a_marker_is_held_back() -> None:
    search = MarkerSearch(("</end>",))
    assert search.feed("a<").text == "a"
    assert search.feed("b</en").text == "<b"
    assert search.feed("d>rest") == ("", "</end>", "rest")
    assert search.flush() == ""
