"""What clients may call their sequences."""

from __future__ import annotations

import pytest

from nereid.core.correlation_ids import check_correlation_id
from nereid.core.errors import NereidError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (-1, (1 << 64) - 1),
        (-(1 << 63), 1 << 63),
        ((1 << 64) - 1, (1 << 64) - 1),
        ("", ""),
        ("x" * 128, "x" * 128),
        ("é" * 64, "é" * 64),
    ],
)
def test_numbers_are_unsigned_and_texts_bounded(value: int | str, expected: int | str) -> None:
    assert check_correlation_id(value) == expected


@pytest.mark.parametrize("text", ["x" * 129, "é" * 65, "\ud800" * 129])
def test_a_long_text_is_refused(text: str) -> None:
    with pytest.raises(NereidError) as caught:
        check_correlation_id(text)
    assert (caught.value.code, caught.value.message, caught.value.accepted) == (
        12,
        "string correlation ID cannot be longer than 128 characters",
        False,
    )
