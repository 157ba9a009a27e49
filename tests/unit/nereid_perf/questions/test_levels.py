from itertools import islice

import pytest

from nereid_perf.questions.levels import parse_concurrency_range, parse_rate_range


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4", [4]),
        ("1:4", [1, 2, 3, 4]),
        ("1:8:3", [1, 4, 7]),
        ("1:64:*4", [1, 4, 16, 64]),
        ("1:10:*1.5", [1, 1, 2, 3, 5, 7]),
        ("1,16,4", [1, 16, 4]),
    ],
)
def test_levels_of_concurrency(text: str, values: list[float]) -> None:
    levels = list(parse_concurrency_range(text).levels())
    assert [each.value for each in levels] == values
    assert {each.kind for each in levels} == {"concurrency"}


def test_rates_end_where_they_should_despite_rounding() -> None:
    values = [each.value for each in parse_rate_range("0.1:1:0.1").levels()]
    assert values == pytest.approx([n / 10 for n in range(1, 11)])


def test_a_range_without_an_end_goes_on() -> None:
    found = parse_rate_range("10:0:5")
    assert found.end is None
    assert [each.value for each in islice(found.levels(), 3)] == [10, 15, 20]


def test_the_middle_of_a_search_is_a_whole_number_in_flight() -> None:
    assert parse_concurrency_range("1:8").between(1, 8) == 4
    assert parse_rate_range("1:8").between(1, 8) == 4.5


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "expected a number"),
        ("0", "above 0"),
        ("1.5", "whole number of requests in flight"),
        ("4:2", "the end 2 is below the start 4"),
        ("1:4:0", "above 0"),
        ("1:4:*1", "factor of at least"),
        ("1:4:1:1", "expected start"),
        ("1,x", "expected a number"),
        ("1:1000000:1", "larger step"),
        ("nan", "expected a number"),
    ],
)
def test_levels_that_are_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_concurrency_range(text)
