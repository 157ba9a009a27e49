"""Bytes of vectors."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from nereid_gateway.extras.openai.vectors import NumberType, as_bytes

NUMBERS = np.array([0, -0.0, 1, -1, 1 / 3, 1e-30, 3e38, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("number_type", ["float32", "float16"])
@pytest.mark.parametrize("endianness", ["little", "big"])
def test_numbers_of_numpys_types(
    number_type: NumberType, endianness: Literal["little", "big"]
) -> None:
    with np.errstate(over="ignore"):
        expected = NUMBERS.astype(number_type).astype(
            np.dtype(number_type).newbyteorder(endianness)
        )
        assert as_bytes(NUMBERS, number_type, endianness) == expected.tobytes()


def test_bfloat16_is_the_nearest_number_ties_to_even() -> None:
    bits = {
        # Halfway between two numbers, and next to it.
        0x3F808000: 0x3F80,
        0x3F818000: 0x3F82,
        0x3F808001: 0x3F81,
        0x3F807FFF: 0x3F80,
        0x80000000: 0x8000,
        0x7F7FFFFF: 0x7F80,
        0x7F800000: 0x7F80,
        0xFF800000: 0xFF80,
        # Numbers that are none.
        0x7FFFFFFF: 0x7FC0,
        0x7F800001: 0x7FC0,
    }
    vector = np.array([*bits], np.uint32).view(np.float32)
    assert np.frombuffer(as_bytes(vector, "bfloat16"), "<u2").tolist() == [*bits.values()]
    assert np.frombuffer(as_bytes(vector, "bfloat16", "big"), ">u2").tolist() == [*bits.values()]
