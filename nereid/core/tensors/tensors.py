"""Conversion of raw tensor bytes to numpy arrays and back.

Raw bytes are little-endian and row-major. BF16 appears as uint16. Importing numpy takes a tenth of
a service's start-up time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import Buffer, join_bytes, split_bytes
from nereid.core.tensors.datatypes import BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = NDArray[Any]

NUMPY_TYPE: Final[dict[str, np.dtype[Any]]] = {
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
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(np.object_),
}
_DATATYPE_OF: Final[dict[np.dtype[Any], str]] = {
    dtype: name for name, dtype in NUMPY_TYPE.items() if name != "BF16"
}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return a numpy type's datatype; all string types are BYTES. Raises InvalidArgument."""
    if dtype.kind in "OSU":
        return BYTES
    name = _DATATYPE_OF.get(dtype.newbyteorder("<"))
    if name is None:
        raise InvalidArgument(f"no datatype of the protocol holds numpy's '{dtype}'")
    return name


def from_raw(raw: Buffer, datatype: str, shape: Sequence[int]) -> Array:
    """Return an array over raw tensor bytes; raise InvalidArgument if they do not fit.

    The array is a view, but BYTES elements are copied.
    """
    if datatype == BYTES:
        elements = split_bytes(raw)
        array = np.empty(len(elements), dtype=np.object_)
        array[:] = elements
    else:
        dtype = NUMPY_TYPE[datatype]
        if len(raw) % dtype.itemsize:
            raise InvalidArgument(f"{len(raw)} bytes are no whole number of {datatype} elements")
        array = np.frombuffer(raw, dtype=dtype)
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise InvalidArgument(
            f"{array.size} {datatype} elements do not fill the shape {list(shape)}"
        ) from error


def to_raw(array: Array) -> bytes:
    """Return the raw bytes of an array, in row-major order."""
    if array.dtype.kind in "OSU":
        # An iterator, because a list would hold all elements at once.
        return join_bytes(array.flat)
    return array.tobytes()
