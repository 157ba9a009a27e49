"""Numbers to raw tensor bytes and back, without numpy.

This module must not import numpy: services use it at their start.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.datatypes import BYTES, SIZE_BYTES
from nereid.core.tensors.shapes import VARIABLE, format_shape, shape_fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.tensors.byte_elements import Buffer

# BF16 is the upper half of FP32.
_FORMATS: Final[dict[str, str]] = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
# Bound for all rows of a request, which a client need not send.
MAX_LITERAL_BYTES: Final = 16 << 20


def read_scalars(raw: Buffer, datatype: str) -> tuple[float, ...]:
    """Return the elements of a raw tensor of any datatype but BYTES; may raise InvalidArgument."""
    size = SIZE_BYTES[datatype]
    if len(raw) % size:
        raise InvalidArgument(f"{len(raw)} bytes are no whole number of {datatype} elements")
    count = len(raw) // size
    if datatype == "BF16":
        wide = b"".join(b"\0\0" + bytes(raw[2 * index : 2 * index + 2]) for index in range(count))
        return struct.unpack(f"<{count}f", wide)
    return struct.unpack(f"<{count}{_FORMATS[datatype]}", raw)


def literal_tensor(
    value: Any, datatype: str, dims: Sequence[int], max_rows: int = 1
) -> tuple[tuple[int, ...], bytes]:
    """Return shape and raw bytes of a JSON value; raise InvalidArgument if it does not fit.

    A single value fills fixed dims; lists in lists give the shape themselves. max_rows: number of
    times that the tensor may be repeated in a request.
    """
    max_bytes = MAX_LITERAL_BYTES // max_rows
    if isinstance(value, list):
        shape = _shape_of(value)
        elements = _flatten(value, len(shape))
        if len(elements) != _count(shape) or not shape_fits(shape, dims):
            raise InvalidArgument(f"the value does not have the shape {format_shape(dims)}")
    else:
        if VARIABLE in dims:
            raise InvalidArgument(
                f"the shape {format_shape(dims)} has a variable dimension, so the value must be a"
                " list"
            )
        shape = tuple(dims)
        width = len(_raw([value], datatype))
        if _count(shape) * width > max_bytes:
            raise InvalidArgument(f"the shape {format_shape(dims)} is too large for a default")
        elements = [value] * _count(shape)
    raw = _raw(elements, datatype)
    if len(raw) > max_bytes:
        raise InvalidArgument(f"the value has {len(raw)} bytes, more than {max_bytes}")
    return shape, raw


def _shape_of(value: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _flatten(value: list[Any], rank: int) -> list[Any]:
    elements = value
    for _ in range(rank - 1):
        if not all(isinstance(each, list) and len(each) == len(elements[0]) for each in elements):
            raise InvalidArgument("the lists of the value do not have the same lengths")
        elements = [each for inner in elements for each in inner]
    return elements


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _raw(elements: Sequence[Any], datatype: str) -> bytes:
    count = len(elements)
    try:
        for element in elements:
            if not _fits(element, datatype):
                raise InvalidArgument(f"{json.dumps(element)[:64]} is no {datatype} value")
        if datatype == BYTES:
            return join_bytes(elements)
        if datatype == "BF16":
            wide = struct.unpack(f"<{count}I", struct.pack(f"<{count}f", *elements))
            # Rounded to the nearest, ties to even.
            halves = [(bits + 0x7FFF + (bits >> 16 & 1)) >> 16 for bits in wide]
            return struct.pack(f"<{count}H", *halves)
        return struct.pack(f"<{count}{_FORMATS[datatype]}", *elements)
    except (struct.error, OverflowError):
        raise InvalidArgument(f"a value is out of range for {datatype}") from None


def _fits(element: Any, datatype: str) -> bool:
    if datatype == BYTES:
        return isinstance(element, str)
    if isinstance(element, bool):
        return datatype == "BOOL"
    if datatype in _FLOATS:
        return isinstance(element, int | float) and math.isfinite(element)
    return datatype != "BOOL" and isinstance(element, int)
