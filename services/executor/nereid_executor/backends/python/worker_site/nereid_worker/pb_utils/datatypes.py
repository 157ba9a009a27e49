"""Datatypes by name, by Triton's number and as numpy types, and the framing of strings."""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import Any

import numpy as np

# By KServe's names, in the order of Triton's numbers, which begin at 1. BF16 has no numpy type.
NUMPY_TYPES: dict[str, Any] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(np.object_),
    "BF16": None,
}
NUMBERS = {name: number for number, name in enumerate(NUMPY_TYPES, 1)}
_NAMES = {dtype: name for name, dtype in NUMPY_TYPES.items() if dtype is not None}
_TYPES = {NUMBERS[name]: dtype.type for name, dtype in NUMPY_TYPES.items() if dtype is not None}
_CONFIG_TYPES = {
    "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}": dtype.type
    for name, dtype in NUMPY_TYPES.items()
    if dtype is not None
}
# As Triton has it.
_CONFIG_TYPES["TYPE_BOOL"] = bool

_LENGTH = Struct("<I")


def datatype_of(dtype: Any) -> str | None:
    """KServe's name of a numpy type; None: it has none."""
    return _NAMES.get(dtype) or ("BYTES" if dtype.kind == "S" else None)


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type with this number of Triton's; None: there is none."""
    return next((known for number, known in _TYPES.items() if data_type == number), None)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Triton's number of a numpy type; None: there is none."""
    # What compares as Triton compares it: a name or a type of Python's is not a numpy type.
    for number, known in _TYPES.items():
        if data_type == known:
            return number
    return NUMBERS["BYTES"] if data_type == np.bytes_ else None


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a data type as configurations write it; raises KeyError."""
    return _CONFIG_TYPES[triton_type_string]


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """An array of strings as a tensor's bytes: before each its length, in four bytes.

    () for an array without elements, None for one that holds no strings: as Triton has it.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    return join_strings(input_tensor)


def join_strings(array: Any) -> bytes:
    """As serialize_byte_tensor, for arrays that do hold strings."""
    parts = []
    for element in array.ravel().tolist():
        data = element if type(element) is bytes else _encoded(element)
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def _encoded(element: Any) -> bytes:
    return bytes(element) if isinstance(element, bytes) else str(element).encode()


def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
    """The strings of a tensor's bytes, as a flat array of bytes objects; else raises struct.error.

    Anything empty is an empty tensor, as Triton has it.
    """
    strings = []
    at, end = 0, len(encoded_tensor)
    view = memoryview(encoded_tensor) if end else b""
    while at < end:
        size = _LENGTH.unpack_from(view, at)[0]
        start = at + _LENGTH.size
        at = start + size
        if at > end:
            unpack_from(f"<{size}s", view, start)
        strings.append(bytes(view[start:at]))
    array = np.empty(len(strings), dtype=np.object_)
    array[:] = strings
    return array
