"""The safetensors reader: what it reads, and that damage is refused with a reason."""

import json
from typing import Any

import numpy as np
import pytest

from examples.zoo.safetensors import SafetensorsError, parse


def safetensors(header: dict[str, Any] | bytes, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_reads_tensors_of_several_datatypes_and_skips_the_metadata() -> None:
    floats = np.arange(6, dtype="<f4").reshape(2, 3)
    longs = np.array([-1, 2**40], dtype="<i8")
    content = safetensors(
        {
            "__metadata__": {"format": "pt"},
            "floats": entry("F32", [2, 3], 0, 24),
            "longs": entry("I64", [2], 24, 40),
            "empty": entry("F16", [0, 4], 40, 40),
            "scalar": entry("U8", [], 40, 41),
        },
        floats.tobytes() + longs.tobytes() + b"\x07",
    )

    tensors = parse(content)

    assert set(tensors) == {"floats", "longs", "empty", "scalar"}
    np.testing.assert_array_equal(tensors["floats"], floats)
    np.testing.assert_array_equal(tensors["longs"], longs)
    assert tensors["empty"].shape == (0, 4)
    assert tensors["scalar"] == 7


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "header ends"),
        (b"\x01\x00", "header ends"),
        (safetensors({}, b"")[:-1], "header ends at byte 10 of 9"),
        (safetensors(b"{nope}", b""), "not JSON"),
        (safetensors({"x": entry("BF16", [1], 0, 2)}, b"ab"), "unsupported datatype BF16"),
        (safetensors({"x": entry("F32", [2], 0, 4)}, b"abcd"), "needs 8 bytes"),
        (safetensors({"x": entry("U8", [4], 1, 5)}, b"abcd"), "offsets 1 to 5 of 4"),
        (safetensors({"x": entry("U8", [4], -4, 0)}, b"abcd"), "offsets -4"),
    ],
)
def test_refuses_what_is_damaged(content: bytes, reason: str) -> None:
    with pytest.raises(SafetensorsError, match=reason):
        parse(content)
