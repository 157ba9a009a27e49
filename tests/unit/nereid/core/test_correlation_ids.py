"""Correlation ids."""

import pytest

from nereid.core import correlation_ids
from nereid.core.errors import Unimplemented


@pytest.mark.parametrize(
    ("given", "unsigned"), [(-1, (1 << 64) - 1), (5, 5), (-(1 << 63), 1 << 63)]
)
def test_numbers_lose_their_sign(given: int, unsigned: int) -> None:
    assert correlation_ids.as_unsigned(given) == unsigned


def test_the_bytes_of_a_text_are_counted() -> None:
    correlation_ids.check_length("é" * 64)
    with pytest.raises(Unimplemented, match="string correlation ID cannot be longer than 128"):
        correlation_ids.check_length("é" * 64 + "x")


@pytest.mark.parametrize(
    ("given", "signed"), [((1 << 64) - 1, -1), (5, 5), (1 << 63, -(1 << 63)), (-1, -1)]
)
def test_numbers_get_a_sign_for_the_wire(given: int, signed: int) -> None:
    assert correlation_ids.as_signed(given) == signed
