"""Server-Timing, of any server, and whatever else comes in its place."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nereid_perf.server_stats.server_timing import MAX_ENTRIES, parse_server_timing

_MS = 1_000_000
_HOUR_NS = 3_600_000 * _MS
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("queue;dur=0.412, inference;dur=3", {"queue": 412_000, "inference": 3 * _MS}),
        # As Nereid has it.
        (
            'cache;dur=0.010;desc=miss, batch-size;desc=8, instance;desc="mlp, 0;dur=9"',
            {"cache": 10_000},
        ),
        ('db;desc="a \\" b";dur=1', {"db": _MS}),
        ('db ; DUR = "2.5" ', {"db": 2_500_000}),
        ("db;dur=1;dur=2", {"db": _MS}),
        ("db;dur=1, db;dur=2", {"db": 3 * _MS}),
        ("miss, , ;dur=1, a b;dur=1", {}),
        ("a;dur=-1, b;dur=nan, c;dur=inf, d;dur=1e3, e;dur=, f;dur, g;dur=3600001", {}),
        ('open;desc="never closed;dur=1', {}),
        ("", {}),
    ],
)
def test_entries_with_a_duration_are_read(text: str, found: dict[str, int]) -> None:
    assert parse_server_timing(text) == found


@given(st.text() | st.text(alphabet='abd=ur;,." \\0123456789'))
@example('"' * 10_000)
@example('"\\' * 10_000)
@example(",".join(f"n{number};dur=1" for number in range(1000)))
@example(";dur=" * 5000)
def test_whatever_comes_is_bounded(text: str) -> None:
    found = parse_server_timing(text)
    assert len(found) <= MAX_ENTRIES
    for name, ns in found.items():
        assert _TOKEN.fullmatch(name)
        assert 0 <= ns <= MAX_ENTRIES * _HOUR_NS


@given(
    st.dictionaries(st.from_regex(_TOKEN, fullmatch=True), st.integers(0, _HOUR_NS), max_size=20),
    st.text(alphabet=st.characters(codec="ascii", exclude_characters='"\\'), max_size=20),
)
def test_what_was_written_is_read(durations: dict[str, int], description: str) -> None:
    text = ", ".join(
        f'{name};desc="{description}";dur={ns // _MS}.{ns % _MS:06}'
        for name, ns in durations.items()
    )
    expected = durations if len(text) <= 4096 else {}
    if expected:
        assert parse_server_timing(text) == expected
