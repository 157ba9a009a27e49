"""Tensors of KServe's gRPC messages as raw bytes: servers send either form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.tensors import NUMPY_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "UINT64": "uint64_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
}


def raw_contents(tensors: Sequence[Any], raw: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of each tensor: `raw`, if there is any, or its typed contents.

    Raises ValueError for contents that are none of their datatype.
    """
    if raw:
        return [*raw, *(b"" for _ in tensors[len(raw) :])]
    return [_typed(tensor) for tensor in tensors]


def _typed(tensor: Any) -> bytes:
    if tensor.datatype == BYTES:
        return join_bytes(tensor.contents.bytes_contents)
    field = _CONTENTS.get(tensor.datatype)
    values = getattr(tensor.contents, field) if field else ()
    try:
        return np.array(values, NUMPY_TYPE[tensor.datatype]).tobytes()
    except (LookupError, OverflowError) as error:
        raise ValueError(f"no {tensor.datatype}: {error}") from error
