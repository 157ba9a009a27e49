"""Converts datatypes between names, Triton's numbers and numpy types, and serializes strings."""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import Any

import numpy as np

# Key: KServe's name. The order is that of Triton's numbers, from 1. numpy has no BF16.
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
# Triton has Python's type bool here, not numpy's.
_CONFIG_TYPES["TYPE_BOOL"] = bool

_LENGTH = Struct("<I")


def datatype_of(dtype: Any) -> str | None:
    """Return KServe's name of a numpy dtype, or None if KServe has no such datatype."""
    return _NAMES.get(dtype) or ("BYTES" if dtype.kind == "S" else None)


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type of a Triton datatype number; None for BF16 and unknown numbers."""
    return next((known for number, known in _TYPES.items() if data_type == number), None)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return Triton's datatype number of a numpy type, or None if there is none."""
    # As on Triton, a dtype's name or one of Python's own types never equals a numpy type.
    for number, known in _TYPES.items():
        if data_type == known:
            return number
    return NUMBERS["BYTES"] if data_type == np.bytes_ else None


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type of a datatype such as TYPE_FP32; KeyError if there is none (BF16)."""
    return _CONFIG_TYPES[triton_type_string]


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """Serialize an array of strings to the bytes of a BYTES tensor.

    Each element becomes four bytes of length (little endian) and its bytes. As on Triton, the
    result is () for an array without elements and None for an array of another dtype.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    return join_strings(input_tensor)


def join_strings(array: Any) -> bytes:
    """Serialize an array of strings as serialize_byte_tensor does, without a check of its dtype."""
    parts = []
    for element in array.ravel().tolist():
        data = element if type(element) is bytes else _encoded(element)
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def _encoded(element: Any) -> bytes:
    return bytes(element) if isinstance(element, bytes) else str(element).encode()


def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
    """Deserialize a BYTES tensor to a one-dimensional array of bytes; struct.error if truncated."""
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
