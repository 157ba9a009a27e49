"""Integers as C's stol parses them."""

import pytest

from nereid.core.c_integers import parse_c_integer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        (" \t\v07x", 7),
        ("+3", 3),
        ("-0", 0),
        ("-2.5", -2),
        ("", None),
        ("x1", None),
        ("+", None),
        ("\u0663", None),
        ("9" * 63, int("9" * 63)),
        ("9" * 5000, 1 << 64),
    ],
)
def test_a_prefix_of_digits_counts(text: str, number: int | None) -> None:
    assert parse_c_integer(text) == number
