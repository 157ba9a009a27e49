"""Tensor datatypes of KServe v2 and Triton: names, sizes and numbers in configurations.

This module must not import numpy: services that look into no tensor run without it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Bytes of one element. BYTES is missing, because its elements have their own lengths.
SIZE_BYTES: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BF16": 2,
}
BOOL: Final = "BOOL"
BYTES: Final = "BYTES"
NAMES: Final = frozenset(SIZE_BYTES) | {BYTES}

# Number in model_config.proto's DataType. TYPE_STRING is KServe's BYTES.
CONFIG_NUMBER: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 2,
    "UINT16": 3,
    "UINT32": 4,
    "UINT64": 5,
    "INT8": 6,
    "INT16": 7,
    "INT32": 8,
    "INT64": 9,
    "FP16": 10,
    "FP32": 11,
    "FP64": 12,
    "BYTES": 13,
    "BF16": 14,
}
NAME_OF_CONFIG_NUMBER: Final[dict[int, str]] = {n: name for name, n in CONFIG_NUMBER.items()}


def element_count(shape: Sequence[int]) -> int:
    """Return the number of elements of a tensor with this shape; an empty shape is a scalar."""
    return prod(shape)


def byte_size(datatype: str, shape: Sequence[int]) -> int | None:
    """Return the raw size of a tensor in bytes; None for BYTES, whose elements vary in length."""
    size = SIZE_BYTES.get(datatype)
    return None if size is None else size * prod(shape)
